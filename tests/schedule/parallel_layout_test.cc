// SPDX-License-Identifier: Apache-2.0
#include "schedule/parallel_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace strata::schedule {
namespace {

using testing::HasSubstr;

template <typename Body>
void expect_refused(Body body, ErrorCode code, const std::vector<std::string>& words) {
  try {
    body();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, code);
    for (const std::string& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

TEST(ParallelLayout, IsTheSameInWhateverOrderItIsWritten) {
  const ParallelLayout layout = {.pipeline = 3, .data = 2, .expert = 1, .tensor = 4};
  EXPECT_EQ(parse_layout("pipeline=3,data=2,tensor=4"), layout);
  EXPECT_EQ(parse_layout("tensor=4,data=2,expert=1,pipeline=3"), layout);
  EXPECT_EQ(layout.num_ranks(), 24);
  EXPECT_EQ(parse_layout("data=1").num_ranks(), 1);
}

TEST(ParallelLayout, ExpertsVaryFastestAndThePipelineSlowest) {
  const ParallelLayout layout = parse_layout("pipeline=2,expert=2,data=3");
  EXPECT_EQ(layout.place_of(0), (ParallelLayout{0, 0, 0, 0}));
  EXPECT_EQ(layout.place_of(1),
            (ParallelLayout{.pipeline = 0, .data = 0, .expert = 1, .tensor = 0}));
  EXPECT_EQ(layout.place_of(2),
            (ParallelLayout{.pipeline = 0, .data = 1, .expert = 0, .tensor = 0}));
  EXPECT_EQ(layout.place_of(11),
            (ParallelLayout{.pipeline = 1, .data = 2, .expert = 1, .tensor = 0}));
}

TEST(ParallelLayout, RefusesWhatIsNoLayoutWithWhatWasWritten) {
  for (const char* text : {"", "pipeline", "pipeline=", "pipeline=0", "pipeline=-1", "pipeline=2x",
                           "pipeline=32769", "pipeline=99999999999", "pipelines=2", "=2",
                           "pipeline=2,", ",pipeline=2", "pipeline=2,pipeline=2", "pipeline =2"}) {
    SCOPED_TRACE(text);
    expect_refused([&] { static_cast<void>(parse_layout(text)); }, ErrorCode::kInvalidArgument,
                   {std::string("--ranks ") + text + ": got '", "want pipeline=N"});
  }
}

TEST(ParallelLayout, CountsTheRanksOfTheLargest) {
  const ParallelLayout layout = parse_layout("pipeline=32768,data=32768,expert=32768,tensor=32768");
  EXPECT_EQ(layout.num_ranks(), int64_t{1} << 60);
}

TEST(ParallelLayout, RefusesAnotherNumberOfRanksWithAllNumbers) {
  const ParallelLayout layout = parse_layout("data=2,pipeline=3");
  check_num_ranks(layout, 6);
  expect_refused(
      [&] { check_num_ranks(layout, 4); }, ErrorCode::kInvalidArgument,
      {"pipeline=3, data=2, expert=1, tensor=1 are 6 ranks, and 4 have started", "mpirun -n 6"});
  expect_refused([&] { check_num_ranks(layout, 1); }, ErrorCode::kInvalidArgument,
                 {"6 ranks, and 1 has started"});
}

}  // namespace
}  // namespace strata::schedule
