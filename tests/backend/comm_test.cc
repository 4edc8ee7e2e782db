// SPDX-License-Identifier: Apache-2.0
#include "backend/comm.h"

#include <gtest/gtest.h>

#include <numeric>

#include "backend/thread_comm.h"
#include "base/error.h"

namespace strata {
namespace {

void send_int(Comm& comm, int to, int64_t tag, int value) {
  comm.send_bytes(to, tag, &value, sizeof(value));
}
int receive_int(Comm& comm, int from, int64_t tag) {
  int value = -1;
  comm.receive_bytes(from, tag, &value, sizeof(value));
  return value;
}

TEST(Comm, MessagesOfATagKeepTheirOrderAndTagsDoNotMix) {
  run_ranks(2, [](Comm& comm) {
    EXPECT_EQ(comm.size(), 2);
    // Twice, in bursts of different length: what waits wraps around the channel's buffers.
    for (const int count : {3, 7}) {
      if (comm.rank() == 0) {
        for (int i = 0; i < count; ++i) {
          send_int(comm, 1, /*tag=*/4, i);
          send_int(comm, 1, /*tag=*/5, 100 + i);
        }
        EXPECT_EQ(receive_int(comm, 1, 6), count);
      } else {
        for (int i = 0; i < count; ++i) EXPECT_EQ(receive_int(comm, 0, 5), 100 + i);
        for (int i = 0; i < count; ++i) EXPECT_EQ(receive_int(comm, 0, 4), i);
        send_int(comm, 0, 6, count);
      }
    }
  });
}

TEST(Comm, ChannelGrowsWhileItsOldestIsInTheMiddle) {
  run_ranks(1, [](Comm& comm) {
    for (int i = 0; i < 3; ++i) send_int(comm, 0, 0, i);
    EXPECT_EQ(receive_int(comm, 0, 0), 0);
    EXPECT_EQ(receive_int(comm, 0, 0), 1);
    for (int i = 3; i < 9; ++i) send_int(comm, 0, 0, i);
    for (int i = 2; i < 9; ++i) EXPECT_EQ(receive_int(comm, 0, 0), i);
  });
}

TEST(Comm, TensorsAndGatheredValues) {
  run_ranks(3, [](Comm& comm) {
    std::vector<float> values(6, static_cast<float>(comm.rank()));
    const TensorView view(values.data(), DType::kF32, {2, 3});
    comm.send((comm.rank() + 1) % 3, 1, view);
    std::fill(values.begin(), values.end(), -1.0f);  // what was sent is a copy
    comm.receive((comm.rank() + 2) % 3, 1, view);
    EXPECT_EQ(values, std::vector<float>(6, static_cast<float>((comm.rank() + 2) % 3)));
    std::vector<double> all;
    const std::vector<double> own = {10.0 * comm.rank(), 10.0 * comm.rank() + 1};
    comm.all_gather(own, all);
    EXPECT_EQ(all, (std::vector<double>{0, 1, 10, 11, 20, 21}));
  });
}

TEST(Comm, AFailedRankStopsThoseThatWait) {
  const auto run = [] {
    run_ranks(3, [](Comm& comm) {
      if (comm.rank() == 1) throw Error(ErrorCode::kInvalidArgument, "rank 1 found a fault");
      receive_int(comm, 1, 0);  // never sent
    });
  };
  try {
    run();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1 found a fault");
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace strata
