// SPDX-License-Identifier: Apache-2.0
// Files that a WorkRunner has read and written by others: what waits for one waits alone, keeps its
// order, and is told what became of it. No file is read until somebody works (Server::reads).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/base/temp_dir.h"
#include "tests/engine/runner_house.h"

namespace strata::engine {
namespace {

using strata::testing::TempDir;
using ::testing::HasSubstr;

// A model, two of its states as sampler weights, of which memory has only the second, and one as a
// state.
struct Saved : Server {
  explicit Saved(const RunnerOptions& options = {.snapshot_bytes = 1}) : Server({}, {}, options) {
    ask(create("m", {.rank = 4, .seed = 1}));
    ask(command("m", 1, api::SaveState{.dir = at("state")}));
    for (int64_t i = 0; i < 2; ++i) {
      ask(command("m", 3 * i + 2, data(*engine, {20}, 4)));
      ask(command("m", 3 * i + 3, api::OptimStep{.adamw = {.lr = 0.05}}));
      ask(command("m", 3 * i + 4, save(name(i))));
    }
  }
  TempDir dir;
  [[nodiscard]] std::string at(const std::string& folder) const {
    return dir.path() + "/" + folder;
  }
  static std::string name(int64_t i) { return "s" + std::to_string(i); }
  [[nodiscard]] api::SaveForSampler save(const std::string& snapshot) const {
    return {.dir = at(snapshot), .snapshot = {snapshot}, .ephemeral = true};
  }
  // One of another tenant than the test's other commands.
  [[nodiscard]] api::Command of(const std::string& snapshot, const std::string& request) const {
    api::Command asked = sample(*engine, request, 12, 3, /*num_samples=*/2);
    asked.tenant = {"tenant of " + snapshot};
    std::get<api::Sample>(asked.op).snapshot = {snapshot};
    std::get<api::Sample>(asked.op).snapshot_dir = at(snapshot);
    return asked;
  }
  void turns() {
    while (turn()) {
    }
  }
  std::vector<int32_t> tokens(const std::string& request) {
    EXPECT_EQ(posted[request].size(), 1u) << request;
    const auto* output = std::get_if<api::SampleOutput>(&posted[request].at(0));
    return output == nullptr ? std::vector<int32_t>{} : output->sequences.at(1).tokens;
  }
  std::string fault(const std::string& request) {
    if (posted[request].empty()) return "no answer";
    const auto* failure = std::get_if<api::Failure>(&posted[request].at(0));
    return failure == nullptr ? "" : failure->message;
  }
};

TEST(FileJobs, ASampleThatWaitsForItsWeightsHoldsUpNobody) {
  Saved server;
  server.ask(server.of("s0", "before"));
  server.ask(server.of("s1", "then"));  // s0 makes way
  server.reads = false;
  for (const char* request : {"a", "b"}) server.submit(server.of("s0", request));
  server.submit(sample(*server.engine, "other", 12, 5));
  server.submit(command("m", 8, data(*server.engine, {20}, 4)));
  server.turns();
  EXPECT_EQ(server.fault("other"), "");
  EXPECT_EQ(server.fault("m-8"), "");
  EXPECT_TRUE(server.posted["a"].empty());
  const api::Capacity waits = server.runner.capacity();
  EXPECT_EQ(waits.running_samples, 4);
  EXPECT_EQ(waits.waiting_samples, 4);
  EXPECT_EQ(server.runner.files().num_waiting(), 1u);  // one read for both
  server.reads = true;
  server.run();
  for (const char* request : {"a", "b"}) EXPECT_EQ(server.tokens(request), server.tokens("before"));
  EXPECT_NE(server.tokens("a"), server.tokens("then"));
}

TEST(FileJobs, AFaultOfAFileIsOfThoseWhoWaitForIt) {
  Saved server;
  server.reads = false;
  std::filesystem::remove(server.at("s0") + "/adapter_config.json");
  for (const char* request : {"a", "b"}) server.submit(server.of("s0", request));
  server.submit(sample(*server.engine, "other", 12, 5));
  server.turns();
  server.scheduler.cancel({"b"}, "cancelled");
  server.reads = true;
  server.run();
  EXPECT_THAT(server.fault("a"), HasSubstr("adapter_config.json"));
  EXPECT_EQ(server.fault("b"), "cancelled");
  EXPECT_EQ(server.fault("other"), "");
  server.submit(server.of("s0", "again"));
  server.run();
  EXPECT_THAT(server.fault("again"), HasSubstr("adapter_config.json"));
}

// Nothing of the model starts before it has the weights; others' work goes on.
TEST(FileJobs, ALoadIsDoneBeforeWhatIsBehindIt) {
  Saved server;
  server.ask(create("n", {.rank = 4, .seed = 2}));
  const auto passes = [&](int64_t first) {
    return command("m", first, data(*server.engine, {20}, 9, /*forward_only=*/true));
  };
  server.ask(passes(8));
  server.reads = false;
  server.submit(command("m", 9, api::LoadState{.dir = server.at("state")}));
  server.submit(passes(10));
  server.submit(command("m", 11, api::SaveState{.dir = server.at("later")}));
  server.submit(command("n", 1, data(*server.engine, {20}, 9)));
  server.turns();
  EXPECT_EQ(server.fault("n-1"), "");
  for (const char* request : {"m-9", "m-10", "m-11"})
    EXPECT_TRUE(server.posted[request].empty()) << request;
  server.submit(command("m", 0, api::UnloadModel{}, "unload"));  // not under the read
  server.turns();
  EXPECT_EQ(server.engine->adapters().size(), 2u);
  server.reads = true;
  server.run();
  EXPECT_EQ(server.fault("m-9"), "");
  EXPECT_THAT(server.fault("m-10"), HasSubstr("was unloaded"));
  EXPECT_EQ(server.fault("unload"), "");
  EXPECT_EQ(server.engine->adapters().size(), 1u);
}

TEST(FileJobs, AModelThatIsMadeOfFilesIsThereWhenTheyAreRead) {
  Saved server;
  server.reads = false;
  api::Command restored = create("n", {.rank = 4, .seed = 7});
  std::get<api::CreateModel>(restored.op).load_dir = server.at("state");
  std::get<api::CreateModel>(restored.op).load_optimizer = true;
  server.submit(restored);
  server.submit(command("n", 1, data(*server.engine, {20}, 4)));
  server.submit(command("n", 2, api::OptimStep{.adamw = {.lr = 0.05}}));
  server.submit(command("n", 3, server.save("n0")));
  server.turns();
  EXPECT_TRUE(server.posted["create n"].empty());
  server.reads = true;
  server.run();
  EXPECT_EQ(server.fault("create n"), "");
  server.ask(server.of("n0", "a"));
  server.ask(server.of("s0", "b"));  // the same steps from the same state
  EXPECT_EQ(server.tokens("a"), server.tokens("b"));
}

// Weights that make way stay until they are written, and can be sampled; memory is not filled with
// more of them meanwhile.
TEST(FileJobs, EvictedWeightsStayUntilTheyAreWritten) {
  Saved server;
  server.reads = false;
  server.submit(command("m", 8, server.save("s2")));
  server.turns();
  EXPECT_EQ(server.fault("m-8"), "");
  EXPECT_EQ(server.runner.snapshots().size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(server.at("s1")));
  EXPECT_EQ(server.runner.capacity().saves, 0);
  server.submit(server.of("s1", "a"));
  server.turns();
  EXPECT_EQ(server.fault("a"), "");
  server.scheduler.release({}, {"s1"});  // its folder must not come after that
  server.turns();
  server.reads = true;
  server.run();
  EXPECT_FALSE(std::filesystem::exists(server.at("s1")));
  EXPECT_EQ(server.runner.capacity().saves, 1);
  EXPECT_EQ(server.runner.snapshots().size(), 1u);
}

}  // namespace
}  // namespace strata::engine
