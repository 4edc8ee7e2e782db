// SPDX-License-Identifier: Apache-2.0
// TensorShare: one of so many tensor ranks, which divide each matrix among themselves by its
// outputs. Deal: what each of them has of an axis. Plain values. Any thread.
#pragma once
#include <algorithm>
#include <cstdint>

namespace strata::model {

struct TensorShare {
  int rank = 0;
  int num_ranks = 1;
  [[nodiscard]] bool is_divided() const { return num_ranks > 1; }
};

// Places [first, first + count) of an axis.
struct AxisPart {
  int64_t first = 0;
  int64_t count = 0;
  [[nodiscard]] int64_t end() const { return first + count; }
  friend bool operator==(const AxisPart&, const AxisPart&) = default;
};

// Parts ascend with the ranks. Without copies they are disjoint and fill the axis, and no rank has
// more than one unit more than another.
struct Deal {
  int64_t size = 0;     // of the axis
  int64_t unit = 1;     // places that stay together, counted from 0; the last ones may be fewer
  bool copied = false;  // of fewer units than ranks neighbours have copies, each of one unit

  [[nodiscard]] int64_t num_units() const { return (size + unit - 1) / unit; }
  [[nodiscard]] AxisPart part_of(const TensorShare& share) const {
    const int64_t units = num_units();
    const int64_t first = units * share.rank / share.num_ranks;
    const int64_t end = units * (share.rank + 1) / share.num_ranks;
    const int64_t least = copied ? first + 1 : first;
    const int64_t begin = std::min(size, first * unit);
    return {begin, std::min(size, std::max(end, least) * unit) - begin};
  }
};

}  // namespace strata::model
