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
  Runs& runs = lists.of<Runs>();
  runs.values = {1, 2, 3};
  Ends& ends = lists.of<Ends>();
  EXPECT_TRUE(ends.values.empty());
  ends.values = {4};
  EXPECT_EQ(&lists.of<Runs>(), &runs);
  EXPECT_EQ(&lists.of<Ends>(), &ends);
  EXPECT_EQ(runs.values, (std::vector<int>{1, 2, 3}));
}

TEST(BlockLists, BelongToTheirPass) {
  BlockLists one;
  BlockLists other;
  one.of<Runs>().values = {1};
  EXPECT_TRUE(other.of<Runs>().values.empty());
  EXPECT_NE(&one.of<Runs>(), &other.of<Runs>());
}

}  // namespace
}  // namespace strata::model
