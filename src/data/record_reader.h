// SPDX-License-Identifier: Apache-2.0
// RecordReader: the records of a file of data one by one, each as the text of a JSON object,
// whatever lays them out: a JSON object a line, one JSON array, or CSV with a header (RFC 4180;
// fields are texts, columns of turns JSON). A record that cannot be read is a fault with its line,
// and the next one is looked for. Holds one record and a piece of the file.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/input_file.h"

namespace strata::data {

enum class Layout : uint8_t { kLines, kArray, kCsv, kTsv };

// Records longer than this are refused before they are parsed.
constexpr int64_t kMaxRecordBytes = int64_t{64} << 20;

struct Record {
  int64_t line = 0;       // where it begins, from 1
  std::string_view json;  // until the next record
  std::string fault;      // not empty: it cannot be read, and json is empty
};

// The layout of a file with these first bytes; its name tells CSV apart.
Layout detect_layout(std::string_view name, std::string_view first_bytes);

// What such bytes are where they are no records, and what to do; empty of others.
struct NoRecords {
  std::string what = {};
  bool is_binary = false;  // nothing of it can be read
};
NoRecords explain_no_records(std::string_view name, std::string_view first_bytes);

// The bytes of a file in order, with the line they are in. Skips a mark of UTF-8 at its begin.
class ByteReader {
 public:
  explicit ByteReader(const InputFile& file);
  // The next byte, or -1 at the end.
  int peek() {
    return at_ < piece_.size() || refill() ? static_cast<unsigned char>(piece_[at_]) : -1;
  }
  int get();
  // Up to the end of the line, which is left out; false where there is nothing more. What is longer
  // than kMaxRecordBytes is cut to one byte more.
  bool get_line(std::string& line);
  [[nodiscard]] int64_t line() const { return line_; }
  [[nodiscard]] int64_t offset() const { return offset_ + static_cast<int64_t>(at_); }

 private:
  bool refill();

  const InputFile& file_;
  std::string piece_;
  size_t at_ = 0;
  int64_t offset_ = 0;  // of the piece in the file
  int64_t line_ = 1;
};

class RecordReader {
 public:
  // Borrows the file.
  explicit RecordReader(const InputFile& file);
  virtual ~RecordReader() = default;
  // Nothing at the end. Blank lines are no records.
  virtual std::optional<Record> next() = 0;
  [[nodiscard]] int64_t offset() const { return bytes_.offset(); }

 protected:
  ByteReader bytes_;
};

std::unique_ptr<RecordReader> make_record_reader(const InputFile& file, Layout layout);

// The first bytes of a file, as many as tell what it is.
std::string read_first_bytes(const InputFile& file);

}  // namespace strata::data
