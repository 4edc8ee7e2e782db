// SPDX-License-Identifier: Apache-2.0
#include "model/pass/block_lists.h"

#include <gtest/gtest.h>

#include <vector>

namespace strata::model {
namespace {

struct Runs {
  std::vector<int> values;
};
struct Ends {
  std::vector<int> values;
};

TEST(BlockLists, HasOneObjectOfEachType) {
  BlockLists lists;
  Runs& runs = lists.get_or_make<Runs>();
  runs.values = {1, 2, 3};
  Ends& ends = lists.get_or_make<Ends>();
  EXPECT_TRUE(ends.values.empty());
  ends.values = {4};
  EXPECT_EQ(&lists.get_or_make<Runs>(), &runs);
  EXPECT_EQ(&lists.get_or_make<Ends>(), &ends);
  EXPECT_EQ(runs.values, (std::vector<int>{1, 2, 3}));
}

TEST(BlockLists, BelongToTheirPass) {
  BlockLists one;
  BlockLists other;
  one.get_or_make<Runs>().values = {1};
  EXPECT_TRUE(other.get_or_make<Runs>().values.empty());
  EXPECT_NE(&one.get_or_make<Runs>(), &other.get_or_make<Runs>());
}

}  // namespace
}  // namespace strata::model
