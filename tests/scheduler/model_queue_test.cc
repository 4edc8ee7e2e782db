// SPDX-License-Identifier: Apache-2.0
#include "scheduler/model_queue.h"

#include <gtest/gtest.h>

namespace strata::scheduler {
namespace {

void add(ModelQueue& queue, int64_t seq, double now = 0.0) {
  queue.add(std::make_shared<const api::Command>(
                api::Command{.model = {"m"}, .seq_id = seq, .op = api::OptimStep{}}),
            now);
}

TEST(ModelQueue, RunsInNumberOrder) {
  ModelQueue queue;
  add(queue, 3);
  add(queue, 2);
  EXPECT_EQ(queue.ready(), nullptr);
  EXPECT_TRUE(queue.has_gap());
  add(queue, 1);
  EXPECT_FALSE(queue.has_gap());
  EXPECT_EQ(queue.num_ready(), 3u);
  for (int64_t seq = 1; seq <= 3; ++seq) {
    ASSERT_EQ(queue.ready()->seq_id, seq);
    queue.pop(0.0);
  }
  EXPECT_EQ(queue.ready(), nullptr);
}

TEST(ModelQueue, KnowsTheLowestNumberThatHasNotArrived) {
  ModelQueue queue;
  EXPECT_EQ(queue.missing(), 1);
  add(queue, 1);
  add(queue, 3);
  queue.mark_refused(5, 0.0);
  EXPECT_EQ(queue.missing(), 2);
  add(queue, 2);
  EXPECT_EQ(queue.missing(), 4);
  queue.pop(0.0);
  EXPECT_EQ(queue.missing(), 4);
  add(queue, 4);
  EXPECT_EQ(queue.missing(), 6);
  add(queue, 9);
  queue.take_all(0.0);
  EXPECT_EQ(queue.missing(), 10);
}

TEST(ModelQueue, AwaitsANumberOnce) {
  ModelQueue queue;
  EXPECT_TRUE(queue.awaits(1));
  add(queue, 1);
  EXPECT_FALSE(queue.awaits(1));
  queue.pop(0.0);
  EXPECT_FALSE(queue.awaits(1));
  EXPECT_EQ(queue.num_waiting(), 0u);
}

TEST(ModelQueue, AFewRefusedNumbersAheadAreKept) {
  ModelQueue queue;
  for (int64_t i = 0; i < 5000; ++i) queue.mark_refused(7 * i + 4, 0.0);
  EXPECT_FALSE(queue.awaits(7 * 1023 + 4));
  EXPECT_TRUE(queue.awaits(7 * 1024 + 4));
  for (const int64_t seq : {3, 2, 1}) queue.mark_refused(seq, 0.0);  // these were waited for
  EXPECT_EQ(queue.next(), 5);
  add(queue, 5);
  for (int64_t seq = 6; seq < 3000; ++seq) queue.mark_refused(seq, 0.0);
  EXPECT_EQ(queue.missing(), 5 + 1025);
  add(queue, 5 + 1025);
  queue.pop(0.0);
  ASSERT_NE(queue.ready(), nullptr);
  EXPECT_EQ(queue.ready()->seq_id, 5 + 1025);
}

TEST(ModelQueue, RefusedNumbersAreSteppedOver) {
  ModelQueue queue;
  add(queue, 2);
  add(queue, 5);
  queue.mark_refused(1, 0.0);
  EXPECT_EQ(queue.ready()->seq_id, 2);
  queue.mark_refused(4, 0.0);
  queue.mark_refused(3, 0.0);
  EXPECT_EQ(queue.num_ready(), 2u);
  EXPECT_FALSE(queue.awaits(4));
  queue.pop(0.0);
  queue.pop(0.0);
  EXPECT_TRUE(queue.awaits(6));
}

TEST(ModelQueue, AConsumedNumberThatIsWaitingStays) {
  ModelQueue queue;
  add(queue, 1);
  queue.mark_refused(1, 0.0);
  EXPECT_EQ(queue.ready()->seq_id, 1);
}

TEST(ModelQueue, AGapIsCountedFromWhenSomethingBeganToWait) {
  ModelQueue queue;
  add(queue, 1, 1.0);
  EXPECT_EQ(queue.gap_since(), std::nullopt);
  queue.pop(2.0);
  add(queue, 3, 10.0);
  add(queue, 4, 20.0);
  EXPECT_EQ(queue.gap_since(), 10.0);
  add(queue, 2, 30.0);
  EXPECT_EQ(queue.gap_since(), std::nullopt);
  queue.pop(40.0);
  queue.pop(41.0);
  queue.pop(42.0);
  add(queue, 7, 50.0);
  EXPECT_EQ(queue.give_up_gap(60.0).size(), 1u);
  EXPECT_FALSE(queue.awaits(5));
  EXPECT_FALSE(queue.awaits(6));
  add(queue, 8);
  EXPECT_EQ(queue.ready()->seq_id, 8);
}

}  // namespace
}  // namespace strata::scheduler
