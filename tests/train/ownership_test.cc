// SPDX-License-Identifier: Apache-2.0
// Who owns which rows of the parameters: each row has one owner, and owners have about as much.
#include "train/ownership.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace strata::train {
namespace {

TEST(Ownership, EachRowHasOneOwnerAndAllHaveAboutAsMuch) {
  // An embedding, norms, matrices as a whole or not, what is not held.
  const std::vector<Ownership::Item> items = {{1000, 8, false}, {1, 8, false},  {64, 8, true},
                                              {0, 0, false},    {64, 8, false}, {1, 8, false},
                                              {64, 24, true},   {5, 3, false}};
  int64_t total = 0;
  for (const Ownership::Item& item : items) total += item.rows * item.cols;
  for (const int owners : {1, 2, 3, 8, 50}) {
    const Ownership ownership(items, owners);
    ASSERT_EQ(ownership.num_owners(), owners);
    int64_t values = 0;
    for (int owner = 0; owner < owners; ++owner) {
      values += ownership.num_values(owner);
      // One row of the largest, or the largest matrix that is whole.
      EXPECT_LE(ownership.num_values(owner), total / owners + 64 * 24) << owners << " " << owner;
    }
    EXPECT_EQ(values, total);
    for (size_t index = 0; index < items.size(); ++index) {
      int64_t next = 0;
      for (int owner = 0; owner < owners; ++owner) {
        const OwnedRows& rows = ownership.rows(owner, index);
        if (rows.empty()) continue;
        EXPECT_EQ(rows.first, next) << index;
        next = rows.end();
        EXPECT_FALSE(items[index].whole && ownership.is_divided(owner, index)) << index;
      }
      EXPECT_EQ(next, items[index].rows) << index;
    }
  }
}

// Experts that each second or third owner has: the rest has none of them, and about as much of all
// else as these.
TEST(Ownership, SomeOwnersAloneHaveAParameter) {
  const std::vector<Ownership::Item> items = {
      {60, 8, false},      {64, 8, false, 0, 3}, {64, 8, false, 0, 3}, {64, 8, false, 1, 3},
      {64, 8, true, 2, 3}, {64, 8, true, 2, 3},  {5, 8, false},        {7, 8, false, 1, 3}};
  const Ownership ownership(items, 6);
  for (size_t index = 0; index < items.size(); ++index) {
    const Ownership::Item& item = items[index];
    int64_t next = 0;
    for (int owner = 0; owner < 6; ++owner) {
      const OwnedRows& rows = ownership.rows(owner, index);
      if (rows.empty()) continue;
      EXPECT_EQ(owner % item.stride, item.first_owner) << index;
      EXPECT_EQ(rows.first, next) << index;
      EXPECT_FALSE(item.whole && ownership.is_divided(owner, index)) << index;
      next = rows.end();
    }
    EXPECT_EQ(next, item.rows) << index;
  }
  EXPECT_EQ(ownership.num_values(0, 1), 64 * 8);
  EXPECT_EQ(ownership.num_values(3, 2), 64 * 8);
  for (const int owner : {1, 4}) {
    const int64_t of_experts = ownership.num_values(owner, 3) + ownership.num_values(owner, 7);
    EXPECT_NEAR(static_cast<double>(of_experts), 71 * 8 / 2.0, 8) << owner;
  }
}

TEST(Ownership, RowsOfBoth) {
  const OwnedRows rows = {.first = 3, .count = 4};
  EXPECT_EQ(rows.shared_with({.first = 5, .count = 9}).count, 2);
  EXPECT_EQ(rows.shared_with({.first = 5, .count = 9}).first, 5);
  EXPECT_TRUE(rows.shared_with({.first = 7, .count = 1}).empty());
  EXPECT_TRUE(rows.shared_with({}).empty());
}

}  // namespace
}  // namespace strata::train
