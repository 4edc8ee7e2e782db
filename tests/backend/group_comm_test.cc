// SPDX-License-Identifier: Apache-2.0
#include "backend/group_comm.h"

#include <gtest/gtest.h>

#include <vector>

#include "backend/thread_comm.h"

namespace strata {
namespace {

// Rows and columns of six ranks, whose messages do not meet.
TEST(GroupComm, NumbersItsRanksFrom0) {
  run_ranks(6, [](Comm& all) {
    GroupComm row(all, {.first = all.rank() / 3 * 3, .size = 3, .first_tag = 100});
    GroupComm column(all, {.first = all.rank() % 3, .stride = 3, .size = 2});
    EXPECT_EQ(row.rank(), all.rank() % 3);
    EXPECT_EQ(row.size(), 3);
    EXPECT_EQ(column.rank(), all.rank() / 3);
    EXPECT_EQ(column.size(), 2);
    EXPECT_EQ(row.ranks_here(), 6);
    const double own = all.rank();
    std::vector<double> values;
    row.all_gather({&own, 1}, values);
    const double first = all.rank() / 3 * 3;
    EXPECT_EQ(values, (std::vector<double>{first, first + 1, first + 2}));
    column.all_gather({&own, 1}, values);
    const double top = all.rank() % 3;
    EXPECT_EQ(values, (std::vector<double>{top, top + 3}));
    row.send_bytes((row.rank() + 1) % 3, 5, &own, sizeof(own));
    double received = -1.0;
    row.receive_bytes((row.rank() + 2) % 3, 5, &received, sizeof(received));
    EXPECT_EQ(received, (all.rank() % 3 + 2) % 3 + first);
  });
}

}  // namespace
}  // namespace strata
