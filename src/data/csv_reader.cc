// SPDX-License-Identifier: Apache-2.0
#include "data/csv_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/ascii.h"
#include "base/error.h"
#include "text/json_field.h"

namespace strata::data {
namespace {

namespace json = boost::json;

constexpr size_t kMaxColumns = 10'000;

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A column of lists; JSON that is none stays a text, which its form refuses by name.
json::value parse_list_cell(const std::string& text) {
  if (!trimmed(text).starts_with('[')) return json::value(text);
  try {
    return text::parse_json(text, "the list");
  } catch (const Error&) {
    return json::value(text);
  }
}

}  // namespace

CsvReader::CsvReader(const InputFile& file, char separator)
    : RecordReader(file), separator_(separator) {}

void CsvReader::append_byte(std::string& field, int c) {
  if (++row_bytes_ > kMaxRecordBytes) {
    fault_ = fmt::format("a row of more than {} bytes", kMaxRecordBytes);
    ended_ = true;
    return;
  }
  field += static_cast<char>(c);
}

// A header whose first name ends with a semicolon says that fields end so, as spreadsheets write
// them where a comma stands in numbers.
bool CsvReader::match_separator(int c) {
  if (c == ';' && separator_ == ',' && header_.empty() && num_fields_ == 0) separator_ = ';';
  return c == separator_;
}

// A line ends at \n, \r\n, or \r alone.
int CsvReader::take_line_end(int c) {
  if (c != '\r') return c;
  if (bytes_.peek() == '\n') bytes_.get();
  return '\n';
}

int CsvReader::read_quoted_field(std::string& field) {
  is_quoted_ = true;
  read_to_closing_quote(field);
  if (ended_) return -1;
  const int c = bytes_.get();
  if (c < 0 || match_separator(c) || c == '\n' || c == '\r') return take_line_end(c);
  fault_ = "text behind a closing quote; a quote inside a field is written twice";
  return skip_rest_of_field(c);
}

void CsvReader::read_to_closing_quote(std::string& field) {
  const int64_t line = bytes_.line();
  while (!ended_) {
    int c = bytes_.get();
    if (c < 0) {
      fault_ = fmt::format("the quote of line {} is not closed; is the file cut off?", line);
      ended_ = true;
      return;
    }
    if (c == '"') {
      if (bytes_.peek() != '"') return;
      c = bytes_.get();
    }
    append_byte(field, c);
  }
}

int CsvReader::skip_rest_of_field(int c) {
  while (c >= 0 && c != separator_ && c != '\n' && c != '\r') c = bytes_.get();
  return take_line_end(c);
}

int CsvReader::read_field(std::string& field) {
  field.clear();
  if (bytes_.peek() == '"') {
    bytes_.get();
    return read_quoted_field(field);
  }
  while (!ended_) {
    const int c = bytes_.get();
    if (c < 0 || match_separator(c) || c == '\n' || c == '\r') return take_line_end(c);
    append_byte(field, c);
  }
  return -1;
}

bool CsvReader::read_row() {
  if (ended_ || bytes_.peek() < 0) return false;
  num_fields_ = 0;
  row_bytes_ = 0;
  is_quoted_ = false;
  fault_.clear();
  for (int end = separator_; end == separator_;) {
    if (num_fields_ == fields_.size()) fields_.emplace_back();
    end = read_field(fields_[num_fields_]);
    if (++num_fields_ > kMaxColumns && fault_.empty()) {
      fault_ = fmt::format("more than {} columns", kMaxColumns);
      ended_ = true;
    }
    if (ended_) break;
  }
  return true;
}

void CsvReader::read_header() {
  if (!read_row()) return;
  header_.assign(fields_.begin(), fields_.begin() + static_cast<int64_t>(num_fields_));
  check_unique_columns();
}

void CsvReader::check_unique_columns() {
  for (size_t i = 0; i < header_.size() && fault_.empty(); ++i) {
    const bool is_twice = std::find(header_.begin(), header_.begin() + static_cast<int64_t>(i),
                                    header_[i]) != header_.begin() + static_cast<int64_t>(i);
    if (is_twice && !header_[i].empty()) {
      fault_ = fmt::format("the header has the column '{}' twice", header_[i]);
      ended_ = true;
    }
  }
}

void CsvReader::serialize_row() {
  json::object object;
  for (size_t i = 0; i < num_fields_; ++i) {
    const std::string& name = header_[i];
    if (name.empty()) continue;  // an index, as tables are written with
    if (fields_[i].empty() && is_one_of(name, {"input", "system", "tools", "history"})) continue;
    if (is_one_of(name, {"messages", "conversations", "tools", "history"})) {
      object[name] = parse_list_cell(fields_[i]);
    } else {
      object[name] = fields_[i];
    }
  }
  json_ = json::serialize(object);
}

std::string CsvReader::describe_wrong_count() const {
  return fmt::format("{} field{}, the header has {}", num_fields_, num_fields_ == 1 ? "" : "s",
                     header_.size());
}

std::optional<Record> CsvReader::next() {
  if (header_.empty()) {
    read_header();
    if (!fault_.empty()) return Record{1, {}, fault_};
  }
  while (true) {
    const int64_t line = bytes_.line();
    if (!read_row()) return {};
    if (!fault_.empty()) return Record{line, {}, fault_};
    const bool is_blank = num_fields_ == 1 && fields_[0].empty() && !is_quoted_;
    if (is_blank) continue;
    if (num_fields_ != header_.size()) return Record{line, {}, describe_wrong_count()};
    serialize_row();
    return Record{line, json_, {}};
  }
}

}  // namespace strata::data
