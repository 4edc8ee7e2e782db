// SPDX-License-Identifier: Apache-2.0
// Table: a summary in aligned columns, for people. Cells are UTF-8 and aligned by the columns they
// take.
//   Table table({{"what"}, {"bytes", Align::kRight}});
//   table.add_row({"weights", "5.7 MiB"});
//   std::cerr << table.text();
#pragma once
#include <string>
#include <vector>

namespace strata::report {

enum class Align { kLeft, kRight };

struct Column {
  std::string header;
  Align align = Align::kLeft;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns);
  // One cell a column; CHECKed.
  void add_row(std::vector<std::string> cells);
  // Header, rule and rows, each line ended by a newline and without trailing blanks. A table whose
  // headers are all empty is printed without header and rule.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] const std::vector<std::vector<std::string>>& rows() const { return rows_; }

 private:
  [[nodiscard]] int column_width(size_t column) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace strata::report
