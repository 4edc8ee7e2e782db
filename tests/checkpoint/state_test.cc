// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "base/rng.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::read_bytes;
using testing::TempDir;
using testing::write_bytes;

constexpr int64_t kElements = 5000;

void save(const std::string& dir, int64_t step) {
  TrainerStateWriter writer(dir, {{"m", DType::kF32, {kElements}}, {"v", DType::kF32, {2, 3}}});
  writer.append("m", std::vector<float>(kElements, static_cast<float>(step)));
  writer.append("v", std::vector<float>(6, static_cast<float>(-step)));
  writer.commit("{\"step\": " + std::to_string(step) + "}");
}

// The step of the state, after checking that both of its files are of that step.
int64_t load(const std::string& dir) {
  const TrainerState state(dir);
  const int64_t step = std::atoll(state.json().substr(9).c_str());
  std::vector<float> m(kElements);
  std::vector<float> v(6);
  state.read("m", {kElements}, m.data());
  state.read("v", {2, 3}, v.data());
  EXPECT_EQ(m, std::vector<float>(kElements, static_cast<float>(step)));
  EXPECT_EQ(v, std::vector<float>(6, static_cast<float>(-step)));
  return step;
}

TEST(TrainerState, RoundTripsAndReplaces) {
  const TempDir dir;
  const std::string trainer = dir.file("out/trainer");
  EXPECT_FALSE(TrainerState::exists(trainer));
  EXPECT_THAT(error_of([&] { TrainerState state(trainer); }), HasSubstr("state.json: open"));
  save(trainer, 1);
  EXPECT_TRUE(TrainerState::exists(trainer));
  EXPECT_EQ(load(trainer), 1);
  save(trainer, 2);
  EXPECT_EQ(load(trainer), 2);
  EXPECT_EQ(read_bytes(trainer + "/state.json"), "{\"step\": 2}");
}

TEST(TrainerState, WithoutCommitThePreviousOneStays) {
  const TempDir dir;
  save(dir.file("trainer"), 1);
  {
    TrainerStateWriter writer(dir.file("trainer"), {{"m", DType::kF32, {1}}});
    const float one[] = {1};
    writer.append("m", one);
  }
  EXPECT_EQ(load(dir.file("trainer")), 1);
  EXPECT_THAT(dir.names(), ElementsAre("trainer"));
}

TEST(TrainerState, WhatDoesNotFitIsNamed) {
  const TempDir dir;
  save(dir.file("trainer"), 1);
  const TrainerState state(dir.file("trainer"));
  std::vector<float> out(kElements);
  EXPECT_THAT(error_of([&] { state.read("q", {1}, out.data()); }), HasSubstr("'q' is missing"));
  EXPECT_THAT(error_of([&] { state.read("v", {3, 2}, out.data()); }),
              HasSubstr("[2, 3], wanted F32 [3, 2]"));
  write_bytes(dir.file("trainer/state.json"), "{\"step\": ");
  EXPECT_THAT(error_of([&] { TrainerState again(dir.file("trainer")); }), HasSubstr("ends early"));
}

// A child saves as fast as it can and is killed at a random moment; what is found is always one
// state, the last one that was acknowledged or a later one.
TEST(TrainerState, SurvivesKillAtAnyMoment) {
  const TempDir dir;
  const std::string trainer = dir.file("trainer");
  int64_t step = 0;
  for (uint64_t round = 0; round < 25; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t next = step + 1;; ++next) {
        save(trainer, next);
        if (::write(pipe_ends[1], &next, sizeof(next)) != sizeof(next)) ::_exit(1);
      }
    }
    ASSERT_GT(child, 0);
    ::close(pipe_ends[1]);
    int64_t acknowledged = step;
    ASSERT_EQ(::read(pipe_ends[0], &acknowledged, sizeof(acknowledged)),
              ssize_t{sizeof(acknowledged)});
    ::usleep(static_cast<useconds_t>(Counter{3, round}.uniform(0) * 8000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    for (int64_t next = 0; ::read(pipe_ends[0], &next, sizeof(next)) == ssize_t{sizeof(next)};)
      acknowledged = next;
    ::close(pipe_ends[0]);
    step = load(trainer);
    ASSERT_TRUE(step == acknowledged || step == acknowledged + 1) << step << " " << acknowledged;
  }
  save(trainer, step + 1);
  EXPECT_THAT(dir.names(), ElementsAre("trainer"));  // the leftovers of the killed are gone
}

std::string marked_dir(const TempDir& dir, const std::string& name, const std::string& content) {
  make_folders(dir.file(name));
  write_bytes(dir.file(name + "/mark"), content);
  return dir.file(name);
}

TEST(ReplaceDir, BothWaysPutTheNewFolderInPlace) {
  for (const bool may_exchange : {true, false}) {
    const TempDir dir;
    const std::string path = marked_dir(dir, "state", "old");
    internal::replace_dir(marked_dir(dir, "state.tmp", "new"), path, may_exchange);
    EXPECT_EQ(read_bytes(path + "/mark"), "new");
    EXPECT_THAT(dir.names(), ElementsAre("state"));
  }
}

// The states that a kill between the steps of the way without exchange can leave.
TEST(RecoverDir, FindsTheOldOrTheNewFolder) {
  const TempDir dir;
  const std::string path = dir.file("state");
  recover_dir(path);  // nothing there: nothing happens
  marked_dir(dir, "state.old", "old");
  marked_dir(dir, "state.tmp", "new");
  {
    const AtomicDir next(path);
  }  // killed between the renames: the next writer finds it first
  EXPECT_EQ(read_bytes(path + "/mark"), "old");
  std::filesystem::rename(path, path + ".old");
  recover_dir(path);  // and so does the next reader
  EXPECT_EQ(read_bytes(path + "/mark"), "old");
  marked_dir(dir, "state.old", "older");
  marked_dir(dir, "state.tmp", "new");
  recover_dir(path);  // killed before the old one was removed
  EXPECT_EQ(read_bytes(path + "/mark"), "old");
  internal::replace_dir(dir.file("state.tmp"), path, /*may_exchange=*/false);
  EXPECT_EQ(read_bytes(path + "/mark"), "new");
  EXPECT_THAT(dir.names(), ElementsAre("state"));
}

}  // namespace
}  // namespace strata
