// SPDX-License-Identifier: Apache-2.0
#include "base/option_table.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace strata {
namespace {

TEST(OptionTable, AValueThatIsRefusedLeavesTheFieldAsItIs) {
  OptionTable table;
  int64_t count = 3;
  std::optional<int64_t> rank;
  std::optional<double> rate = 0.5;
  table.integer("count", count, {1, 9, "1 to 9"}, "");
  table.integer("rank", rank, {1, 9, "1 to 9"}, "");
  table.number("rate", rate, {0, 1, "0 to 1"}, "");
  for (const OptionRow& row : table.rows()) EXPECT_THROW(row.set("10"), Error) << row.name;
  EXPECT_EQ(count, 3);
  EXPECT_EQ(rank, std::nullopt);
  EXPECT_EQ(rate, 0.5);
  EXPECT_NO_THROW(table.check());
}

}  // namespace
}  // namespace strata
