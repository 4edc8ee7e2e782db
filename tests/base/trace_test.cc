// SPDX-License-Identifier: Apache-2.0
#include "base/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/threads.h"

namespace strata {
namespace {

using testing::ElementsAre;

std::vector<std::string> names(const TracedThread& thread) {
  std::vector<std::string> out;
  for (const TracedSpan& span : thread.spans) out.emplace_back(span.name);
  return out;
}

TEST(Trace, KeepsNothingWhileItIsOff) {
  {
    const TraceSpan span("before");
  }
  start_trace();
  EXPECT_TRUE(stop_trace().empty());
  {
    const TraceSpan span("after");
  }
  EXPECT_TRUE(stop_trace().empty());
}

TEST(Trace, SpansNestByTime) {
  start_trace();
  {
    const TraceSpan outer("outer", "layer", 3);
    const TraceSpan nothing("");
    const TraceSpan inner("inner");
  }
  const std::vector<TracedThread> threads = stop_trace();
  ASSERT_EQ(threads.size(), 1u);
  ASSERT_THAT(names(threads[0]), ElementsAre("inner", "outer"));
  const TracedSpan& inner = threads[0].spans[0];
  const TracedSpan& outer = threads[0].spans[1];
  EXPECT_EQ(outer.key, "layer");
  EXPECT_EQ(outer.number, 3);
  EXPECT_LE(0, outer.start_ns);
  EXPECT_LE(outer.start_ns, inner.start_ns);
  EXPECT_LE(inner.start_ns, inner.end_ns);
  EXPECT_LE(inner.end_ns, outer.end_ns);
}

TEST(Trace, EachThreadHasARowWithItsName) {
  start_trace();
  {
    const TraceSpan span("here");
  }
  std::thread([] {
    name_thread("reader");
    const TraceSpan span("there");
  }).join();
  const std::vector<TracedThread> threads = stop_trace();
  ASSERT_EQ(threads.size(), 2u);
  EXPECT_EQ(threads[0].name, "thread 0");
  EXPECT_EQ(threads[1].name, "reader");
  EXPECT_THAT(names(threads[1]), ElementsAre("there"));
}

TEST(Trace, ASpanIsOfTheTraceInWhichItBeganAndEnded) {
  start_trace();
  {
    const TraceSpan across("across");
    stop_trace();
    start_trace();
    const TraceSpan within("within");
  }
  const std::vector<TracedThread> threads = stop_trace();
  ASSERT_EQ(threads.size(), 1u);
  EXPECT_THAT(names(threads[0]), ElementsAre("within"));
}

TEST(Trace, AThreadsLastSpansAreKept) {
  start_trace();
  constexpr auto kMore = static_cast<int64_t>(kSpansOfAThread) + 10;
  for (int64_t i = 0; i < kMore; ++i) const TraceSpan span("span", "i", i);
  const std::vector<TracedThread> threads = stop_trace();
  ASSERT_EQ(threads[0].spans.size(), kSpansOfAThread);
  EXPECT_EQ(threads[0].num_lost, 10);
  for (size_t i = 0; i < kSpansOfAThread; ++i) {
    ASSERT_EQ(threads[0].spans[i].number, static_cast<int64_t>(i) + 10);
  }
}

TEST(Trace, WorkersOfATeamHaveRows) {
  ThreadPool pool(3);
  start_trace();
  // Who has begun the second part has recorded the first.
  for (int region = 0; region < 2; ++region) pool.run(3, [](int64_t, int64_t, int) {});
  const std::vector<TracedThread> threads = stop_trace();
  ASSERT_EQ(threads.size(), 2u);
  for (const TracedThread& thread : threads) {
    EXPECT_THAT(thread.name, testing::StartsWith("worker "));
    EXPECT_THAT(names(thread), testing::Each("work"));
    EXPECT_THAT(thread.spans.size(), testing::AnyOf(1u, 2u));
  }
}

// A trace may end while threads are at work.
TEST(Trace, EndsWhileThreadsRecord) {
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) const TraceSpan span("busy");
  });
  for (int i = 0; i < 100; ++i) {
    start_trace();
    for (const TracedThread& thread : stop_trace()) {
      for (const TracedSpan& span : thread.spans) ASSERT_LE(span.start_ns, span.end_ns);
    }
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace strata
