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
  Runs& runs = lists.ensure_lists<Runs>();
  runs.values = {1, 2, 3};
  Ends& ends = lists.ensure_lists<Ends>();
  EXPECT_TRUE(ends.values.empty());
  ends.values = {4};
  EXPECT_EQ(&lists.ensure_lists<Runs>(), &runs);
  EXPECT_EQ(&lists.ensure_lists<Ends>(), &ends);
  EXPECT_EQ(runs.values, (std::vector<int>{1, 2, 3}));
}

TEST(BlockLists, BelongToTheirPass) {
  BlockLists one;
  BlockLists other;
  one.ensure_lists<Runs>().values = {1};
  EXPECT_TRUE(other.ensure_lists<Runs>().values.empty());
  EXPECT_NE(&one.ensure_lists<Runs>(), &other.ensure_lists<Runs>());
}

}  // namespace
}  // namespace strata::model
