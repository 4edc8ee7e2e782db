// SPDX-License-Identifier: Apache-2.0
// CsvReader: rows of CSV as records (RFC 4180): the first row has the columns' names, a field in
// quotes may hold separators, line ends and doubled quotes. A row becomes a JSON object of texts;
// columns whose forms are lists (messages, conversations, tools, history) are read as JSON, and
// empty fields that a form may leave out are left out.
#pragma once
#include <string>
#include <vector>

#include "data/record_reader.h"

namespace strata::data {

class CsvReader : public RecordReader {
 public:
  CsvReader(const InputFile& file, char separator);
  std::optional<Record> next() override;

 private:
  // The fields of a row; false at the end of the file. Returns what is wrong in `fault_`.
  bool read_row();
  // Reads a field; returns the byte that ended it: the separator, '\n' or -1.
  int read_field(std::string& field);
  int read_quoted_field(std::string& field);
  // The quote is taken, and left out; at the end of the file it is a fault that there is none.
  void read_to_closing_quote(std::string& field);
  int skip_rest_of_field(int c);
  int take_line_end(int c);
  // Whether the byte is the separator, which the header's first name may still tell.
  bool match_separator(int c);
  void read_header();
  void check_unique_columns();
  void append_byte(std::string& field, int c);
  void serialize_row();
  [[nodiscard]] std::string describe_wrong_count() const;  // of the row's fields

  char separator_;
  std::vector<std::string> header_;
  std::vector<std::string> fields_;
  size_t num_fields_ = 0;  // of fields_, which are reused
  int64_t row_bytes_ = 0;
  bool is_quoted_ = false;  // a field of the row is
  bool ended_ = false;
  std::string fault_;
  std::string json_;
};

}  // namespace strata::data
