// SPDX-License-Identifier: Apache-2.0
#include "train/ownership.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace strata::train {

OwnedRows OwnedRows::shared_with(const OwnedRows& other) const {
  const int64_t begin = std::max(first, other.first);
  return {begin, std::max<int64_t>(0, std::min(end(), other.end()) - begin)};
}

void append_row_pieces(size_t index, const OwnedRows& rows, int64_t cols, DType dtype,
                       std::vector<RowPiece>& pieces) {
  const int64_t most = std::max<int64_t>(1, kPieceBytes / (cols * dtype_bytes(dtype)));
  for (int64_t first = rows.first; first < rows.end(); first += most) {
    const int64_t count = std::min(most, rows.end() - first);
    pieces.push_back({index, {first, count}, {count, cols}, dtype});
  }
}

int64_t Ownership::rows_to_take(const Item& item, int64_t left, int64_t space) {
  int64_t count = item.cols == 0 ? left : (space + item.cols / 2) / item.cols;
  if (item.whole) count = 2 * space >= left * item.cols ? left : 0;
  return std::clamp<int64_t>(count, 0, left);
}

Ownership::Ownership(std::span<const Item> items, int num_owners)
    : items_(items.begin(), items.end()),
      rows_(static_cast<size_t>(num_owners), std::vector<OwnedRows>(items.size())) {
  CHECK(num_owners >= 1, num_owners);
  std::map<std::pair<int, int>, Filling> fillings;
  const auto filling_of = [&](const Item& item) -> Filling& {
    return fillings[{item.first_owner, item.stride}];
  };
  for (const Item& item : items_) filling_of(item).total += item.rows * item.cols;
  for (size_t index = 0; index < items_.size(); ++index)
    divide_rows(index, filling_of(items_[index]));
}

void Ownership::divide_rows(size_t index, Filling& filling) {
  const Item& item = items_[index];
  const int num_owners = (this->num_owners() - item.first_owner + item.stride - 1) / item.stride;
  for (int64_t first = 0; first < item.rows;) {
    const int64_t left = item.rows - first;
    const int64_t space = filling.total * (filling.place + 1) / num_owners - filling.done;
    const bool is_last = filling.place + 1 == num_owners;
    const int64_t count = is_last ? left : rows_to_take(item, left, space);
    const auto owner = static_cast<size_t>(item.first_owner + filling.place * item.stride);
    if (count > 0) rows_[owner][index] = {first, count};
    first += count;
    filling.done += count * item.cols;
    if (first < item.rows) ++filling.place;
  }
}

int64_t Ownership::num_values(int owner) const {
  int64_t values = 0;
  for (size_t index = 0; index < items_.size(); ++index) values += num_values(owner, index);
  return values;
}

}  // namespace strata::train
