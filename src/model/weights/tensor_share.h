// SPDX-License-Identifier: Apache-2.0
// TensorShare: one of so many tensor ranks, which divide each matrix among themselves by its
// outputs. Deal: what each of them has of an axis, and which of its places it adds to a sum over
// the axis that ranks continue one behind the other. Plain values. Any thread.
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

// Such a sum passes from rank to rank at multiples of so many places, counted from the axis' own
// start: whole pairs, groups and panels of every CPU path, so that no border shows in its bits.
constexpr int64_t kChainUnit = 64;

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
  [[nodiscard]] bool is_copy(const TensorShare& share) const {
    return copied && share.rank > 0 && part_of({share.rank - 1, share.num_ranks}) == part_of(share);
  }

  // The places that a rank adds to a sum over the axis: its own from the last border before them
  // to the last one in them, so that what is behind that is the next rank's to add; the last
  // ones are all that are left. None of copies, and there may be none.
  [[nodiscard]] AxisPart chain_of(const TensorShare& share) const {
    const AxisPart part = part_of(share);
    const int64_t end = part.end() == size ? size : part.end() / kChainUnit * kChainUnit;
    const int64_t first = is_copy(share) ? end : part.first / kChainUnit * kChainUnit;
    return {first, end - first};
  }
  // Places before a rank's own that it may have to add: those behind the last border.
  [[nodiscard]] int64_t num_lead(const TensorShare& share) const {
    return part_of(share).first % kChainUnit;
  }
  // Whether each rank adds just what it has.
  [[nodiscard]] bool chains_own_places(int num_ranks) const {
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (chain_of({rank, num_ranks}) != part_of({rank, num_ranks})) return false;
    }
    return true;
  }
};

}  // namespace strata::model
