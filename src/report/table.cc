// SPDX-License-Identifier: Apache-2.0
#include "report/table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "report/text_width.h"

namespace strata::report {
namespace {

constexpr std::string_view kGap = "  ";

void append_line(std::string& out, const std::vector<std::string>& cells,
                 const std::vector<Column>& columns, const std::vector<int>& widths) {
  std::string line;
  for (size_t c = 0; c < cells.size(); ++c) {
    const std::string pad(static_cast<size_t>(widths[c] - text_width(cells[c])), ' ');
    if (c > 0) line.append(kGap);
    line.append(columns[c].align == Align::kRight ? pad + cells[c] : cells[c] + pad);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  out.append(line).append("\n");
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  CHECK(!columns_.empty());
  for (Column& column : columns_) column.header = printable(column.header);
}

void Table::add_row(std::vector<std::string> cells) {
  CHECK(cells.size() == columns_.size(), cells.size(), columns_.size());
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

int Table::column_width(size_t column) const {
  int width = text_width(columns_[column].header);
  for (const auto& row : rows_) width = std::max(width, text_width(row[column]));
  return width;
}

std::string Table::text() const {
  std::vector<int> widths;
  std::vector<std::string> headers;
  std::vector<std::string> rules;
  bool has_header = false;
  for (size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(column_width(c));
    headers.push_back(columns_[c].header);
    rules.emplace_back(static_cast<size_t>(widths.back()), '-');
    has_header = has_header || !columns_[c].header.empty();
  }
  std::string out;
  if (has_header) {
    append_line(out, headers, columns_, widths);
    append_line(out, rules, columns_, widths);
  }
  for (const auto& row : rows_) append_line(out, row, columns_, widths);
  return out;
}

}  // namespace strata::report
