// SPDX-License-Identifier: Apache-2.0
#include "data/record_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "data/csv_reader.h"
#include "data/parquet.h"

namespace strata::data {
namespace {

constexpr size_t kPiece = 256 << 10;
constexpr size_t kFirstBytes = 4096;
constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

bool is_space(int c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::string too_long() { return fmt::format("a record of more than {} bytes", kMaxRecordBytes); }

class LineReader : public RecordReader {
 public:
  using RecordReader::RecordReader;

  std::optional<Record> next() override {
    while (true) {
      const int64_t line = bytes_.line();
      if (!bytes_.get_line(text_)) return {};
      if (is_blank(text_)) continue;
      if (std::ssize(text_) > kMaxRecordBytes) return Record{line, {}, too_long()};
      return Record{line, text_, {}};
    }
  }

 private:
  std::string text_;
};

// The elements of one array. Only brackets and texts are looked at; who takes them parses them.
class ArrayReader : public RecordReader {
 public:
  using RecordReader::RecordReader;

  std::optional<Record> next() override {
    if (ended_) return {};
    const bool is_first = std::exchange(is_first_, false);
    if (is_first) skip_opening();
    skip_spaces();
    const int64_t line = bytes_.line();
    if (is_first && bytes_.peek() == ']') return finish_empty(line);
    Record record{line, {}, read_element()};
    if (record.fault.empty() && is_blank(text_)) {
      record.fault = "an element is missing before a comma or the closing bracket";
    }
    if (record.fault.empty()) record.json = text_;
    return record;
  }

 private:
  // The bracket that detect_layout saw.
  void skip_opening() {
    skip_spaces();
    bytes_.get();
  }

  void skip_spaces() {
    while (is_space(bytes_.peek())) bytes_.get();
  }

  // An array without elements: a record of what is wrong behind it, or none.
  std::optional<Record> finish_empty(int64_t line) {
    bytes_.get();
    std::string behind = finish_array();
    return behind.empty() ? std::optional<Record>() : Record{line, {}, std::move(behind)};
  }

  // The text up to the comma or bracket behind it; returns what is wrong.
  std::string read_element() {
    text_.clear();
    int64_t depth = 0;
    bool in_text = false, is_escaped = false;
    while (true) {
      const int c = bytes_.get();
      if (c < 0) {
        ended_ = true;
        return "the array is not closed; is the file cut off?";
      }
      if (in_text) {
        in_text = is_escaped || c != '"';
        is_escaped = !is_escaped && c == '\\';
      } else if (depth == 0 && c == ',') {
        return {};
      } else if (depth == 0 && c == ']') {
        return finish_array();
      } else {
        in_text = c == '"';
        if (c == '{' || c == '[') ++depth;
        if ((c == '}' || c == ']') && depth > 0) --depth;  // one too many is the element's fault
      }
      text_ += static_cast<char>(c);
      if (std::ssize(text_) > kMaxRecordBytes) {
        ended_ = true;
        return too_long();
      }
    }
  }

  // Behind its bracket; returns what is wrong.
  std::string finish_array() {
    ended_ = true;
    skip_spaces();
    return bytes_.peek() < 0 ? "" : "there is more behind the end of the array";
  }

  std::string text_;
  bool is_first_ = true, ended_ = false;
};

std::string without_quotes_and_spaces(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    if (c != '"' && c != ' ') plain += c;
  }
  return plain;
}

// A header with a comma behind each name, as `name` has one.
bool has_column(std::string_view header, std::string_view name) {
  const size_t at = header.find(name);
  return at != std::string_view::npos && (at == 0 || header[at - 1] == ',');
}

// The names of columns that a file from a pipe, which has no name, is known by.
bool has_known_header(std::string_view first_bytes) {
  const std::string_view line = first_bytes.substr(0, first_bytes.find_first_of("\r\n"));
  constexpr std::array<std::string_view, 8> kFirst = {"instruction,", "input,",        "output,",
                                                      "prompt,",      "completion,",   "text,",
                                                      "messages,",    "conversations,"};
  const std::string plain = without_quotes_and_spaces(line) + ',';
  const auto is_there = [&](std::string_view name) { return has_column(plain, name); };
  return plain == "text," || std::count_if(kFirst.begin(), kFirst.end(), is_there) >= 2;
}

std::string_view without_leading_spaces(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

std::string without_packing_suffix(std::string name) {
  for (const std::string_view suffix : {".gz", ".zst"}) {
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  }
  return name;
}

}  // namespace

ByteReader::ByteReader(const InputFile& file) : file_(file) {
  if (refill() && piece_.starts_with(kUtf8Mark)) at_ = kUtf8Mark.size();
}

bool ByteReader::refill() {
  offset_ += static_cast<int64_t>(piece_.size());
  piece_.resize(kPiece);
  piece_.resize(file_.read_some(offset_, piece_));
  at_ = 0;
  return !piece_.empty();
}

int ByteReader::get() {
  const int c = peek();
  if (c < 0) return c;
  ++at_;
  line_ += c == '\n' ? 1 : 0;
  return c;
}

bool ByteReader::get_line(std::string& line) {
  line.clear();
  if (peek() < 0) return false;
  constexpr size_t kMost = static_cast<size_t>(kMaxRecordBytes) + 1;
  do {
    const size_t end = std::min(piece_.find('\n', at_), piece_.size());
    line.append(piece_, at_, std::min(end - at_, kMost - line.size()));
    at_ = end;
  } while (at_ == piece_.size() && refill());
  get();
  return true;
}

RecordReader::RecordReader(const InputFile& file) : bytes_(file) {}

std::string read_first_bytes(const InputFile& file) {
  std::string bytes(kFirstBytes, '\0');
  bytes.resize(file.read_some(0, bytes));
  if (bytes.starts_with(kUtf8Mark)) bytes.erase(0, kUtf8Mark.size());
  return bytes;
}

Layout detect_layout(std::string_view name, std::string_view first_bytes) {
  const std::string plain = without_packing_suffix(std::string(name));
  if (plain.ends_with(".csv")) return Layout::kCsv;
  if (plain.ends_with(".tsv")) return Layout::kTsv;
  const std::string_view start = without_leading_spaces(first_bytes);
  if (start.starts_with('[')) return Layout::kArray;
  if (!start.starts_with('{') && has_known_header(start)) return Layout::kCsv;
  return Layout::kLines;
}

NoRecords explain_no_records(std::string_view name, std::string_view first_bytes) {
  const std::string_view start = without_leading_spaces(first_bytes);
  if (start.starts_with("PAR1")) {
    return {fmt::format("this is a Parquet file; make JSONL of it with Python's pyarrow:\n  {}",
                        parquet_command(name)),
            /*is_binary=*/true};
  }
  if (start.starts_with("\xff\xfe") || start.starts_with("\xfe\xff")) {
    return {fmt::format("this is UTF-16; want UTF-8: iconv -f UTF-16 -t UTF-8 {} > FILE", name),
            /*is_binary=*/true};
  }
  if (start.starts_with("PK\x03\x04")) return {"this is a zip archive; unzip it first", true};
  const std::string_view line = start.substr(0, start.find_first_of("\r\n"));
  if (line == "{") {
    return {fmt::format(
        "a JSON object a line is wanted, and these have several: jq -c . {} > FILE.jsonl", name)};
  }
  if (start.empty() || start[0] == '{' || start[0] == '[') return {};
  const Layout layout = detect_layout(name, first_bytes);
  if (layout == Layout::kCsv || layout == Layout::kTsv) return {};
  return {
      "is this JSONL? want a JSON object a line, like {\"prompt\": ..., \"completion\": ...}; or "
      "one "
      "JSON array of them, or CSV in a file that ends in .csv"};
}

std::unique_ptr<RecordReader> make_record_reader(const InputFile& file, Layout layout) {
  switch (layout) {
    case Layout::kLines:
      return std::make_unique<LineReader>(file);
    case Layout::kArray:
      return std::make_unique<ArrayReader>(file);
    case Layout::kCsv:
      return std::make_unique<CsvReader>(file, ',');
    case Layout::kTsv:
      return std::make_unique<CsvReader>(file, '\t');
  }
  return nullptr;
}

}  // namespace strata::data
