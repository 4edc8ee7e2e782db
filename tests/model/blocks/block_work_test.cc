// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/block_work.h"

#include <gtest/gtest.h>

namespace strata::model {
namespace {

TEST(BlockWork, PairsAreThoseOfTheWindow) {
  EXPECT_EQ(num_query_key_pairs(0, 8192, 0), 8192.0 * 8192.0 / 2.0);
  EXPECT_EQ(num_query_key_pairs(0, 8192, 512), 512.0 * 512.0 / 2.0 + (8192.0 - 512.0) * 512.0);
  EXPECT_EQ(num_query_key_pairs(0, 100, 512), num_query_key_pairs(0, 100, 0));
  EXPECT_EQ(num_query_key_pairs(1000, 1008, 30), 8.0 * 30.0);
  EXPECT_EQ(num_query_key_pairs(0, 90, 30, true), 3.0 * 30.0 * 30.0 / 2.0);
  EXPECT_EQ(num_query_key_pairs(85, 100, 30, true), (900.0 - 625.0 + 100.0) / 2.0);
  // However a sequence is cut.
  EXPECT_EQ(num_query_key_pairs(0, 20, 30) + num_query_key_pairs(20, 77, 30) +
                num_query_key_pairs(77, 300, 30),
            num_query_key_pairs(0, 300, 30));
}

}  // namespace
}  // namespace strata::model
