// SPDX-License-Identifier: Apache-2.0
// Faults of a WorkRunner's turn: disks that are slow or full, passes that fail, what is thrown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/base/temp_dir.h"
#include "tests/engine/runner_house.h"

namespace strata::engine {
namespace {

using strata::testing::TempDir;
using ::testing::HasSubstr;

// All of latent attention is attention, and shared and routed experts are the MLP.
// A save is a copy: the model trains on before anything is written, and the files hold what it was.
TEST(RunnerFaults, ASaveIsWrittenLaterAndHoldsWhatWasThen) {
  TempDir dir;
  for (const char* name : {"now", "later", "export-now", "export-later"})
    std::filesystem::create_directories(dir.path() + "/" + name);
  Server server;
  server.ask(create("m", {.rank = 4, .seed = 1}));
  server.ask(command("m", 1, data(*server.engine, {20}, 4)));
  server.ask(command("m", 2, api::OptimStep{.adamw = {.lr = 0.05}}));
  const auto save = [&](const char* to) { return api::SaveState{dir.path() + "/" + to, "base"}; };
  const auto exported = [&](const char* to) {
    return api::SaveForSampler{
        .dir = dir.path() + "/" + to, .base_model_name = "base", .for_export = true};
  };
  server.ask(command("m", 3, save("now")));
  server.ask(command("m", 4, exported("export-now")));
  server.writes = false;
  server.submit(command("m", 5, save("later")));
  server.submit(command("m", 6, exported("export-later")));
  server.turn();
  EXPECT_EQ(server.posted["m-5"].size(), 1u);
  // Its memory is taken until it is written; the next copy waits where there is no room for two.
  server.turn();
  EXPECT_EQ(server.posted["m-6"].size(), 1u);
  server.submit(command("m", 7, data(*server.engine, {20}, 5)));
  server.submit(command("m", 8, api::OptimStep{.adamw = {.lr = 0.5}}));
  server.run();
  for (const char* request : {"m-5", "m-6"}) server.runner.copies().flush_copy({request});
  EXPECT_EQ(server.runner.copies().num_bytes(), 0);
  for (const char* file : {"adapter_model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(strata::testing::read_bytes(dir.path() + "/now/" + file),
              strata::testing::read_bytes(dir.path() + "/later/" + file));
  EXPECT_EQ(strata::testing::read_bytes(dir.path() + "/export-now/adapter_model.safetensors"),
            strata::testing::read_bytes(dir.path() + "/export-later/adapter_model.safetensors"));
}

// The scheduler hears of a failure when the turn ends; in a break of its pass it may still hand out
// the request's further rows.
TEST(RunnerFaults, FurtherRowsOfAFailedRequestAreNoSecondAnswer) {
  Server server;
  api::Command asked = sample(*server.engine, "s", 5, /*seed=*/1, /*num_samples=*/3);
  std::get<api::Sample>(asked.op).max_tokens = 1 << 20;
  const auto shared = std::make_shared<const api::Command>(std::move(asked));
  const auto rows = [&](int64_t first, int64_t last) {
    return server.runner.sample({.samples = {{.command = shared, .first = first, .last = last}}});
  };
  const std::vector<api::Result> failed = rows(0, 1);
  ASSERT_EQ(failed.size(), 1u);
  const auto* failure = std::get_if<api::Failure>(&failed[0].outcome);
  ASSERT_NE(failure, nullptr);
  EXPECT_THAT(failure->message, HasSubstr("context window"));
  EXPECT_TRUE(rows(1, 3).empty());
}

TEST(RunnerFaults, CopiesThatWaitForTheDiskAreBounded) {
  TempDir dir;
  Server server({}, {}, {.snapshot_bytes = 1});
  server.ask(create("m", {.rank = 4, .seed = 1}));
  server.writes = false;
  server.submit(command("m", 1, api::SaveState{dir.path(), "base"}));
  server.submit(command("m", 2, api::SaveState{dir.path(), "base"}));
  while (server.turn()) {
  }
  EXPECT_EQ(server.posted["m-1"].size(), 1u);
  EXPECT_EQ(server.posted["m-2"].size(), 0u);
  EXPECT_EQ(server.runner.capacity().saves, 0);
  server.runner.copies().drop({"m-1"});
  EXPECT_FALSE(server.runner.copies().flush_copy({"m-1"}).has_value());
  EXPECT_EQ(server.runner.capacity().saves, 1);
  server.turn();
  EXPECT_EQ(server.posted["m-2"].size(), 1u);
}

// A full disk: the weights that were to make room stay in memory, and others' sampling goes on.
TEST(RunnerFaults, SnapshotsThatCannotBeWrittenStay) {
  TempDir dir;
  strata::testing::write_bytes(dir.file("a file"), "no folder");
  Server server({}, {}, {.snapshot_bytes = 1});
  server.ask(create("m", {.rank = 4, .seed = 1}));
  for (int i = 1; i <= 3; ++i) {
    const std::string name = std::to_string(i);
    const api::Outcome& saved = server.ask(command(
        "m", i,
        api::SaveForSampler{
            .dir = dir.path() + "/a file/" + name, .snapshot = {"s" + name}, .ephemeral = true}));
    EXPECT_TRUE(std::holds_alternative<api::Saved>(saved)) << i;
  }
  EXPECT_EQ(server.runner.snapshots().size(), 3u);
  for (int i = 1; i <= 3; ++i) {
    api::Command asked = sample(*server.engine, "ask" + std::to_string(i), 12, 3);
    std::get<api::Sample>(asked.op).snapshot = {"s" + std::to_string(i)};
    EXPECT_EQ(server.message(asked), "");
  }
}

// A pass that fails after some of its data ran: nothing of it may reach the next step.
TEST(RunnerFaults, AFailedPassDropsTheGradientAndSaysSo) {
  Server server({.options = {.pass_tokens = 64}});
  for (const char* model : {"m", "n"}) server.ask(create(model, {.rank = 4, .seed = 1}));
  for (const char* model : {"m", "n"}) {
    server.submit(command(model, 1, data(*server.engine, {20, 20, 20, 20, 20, 20}, 3)));
  }
  server.turn();  // the first data's gradients are there
  ASSERT_TRUE(server.engine->adapters().begin()->second->has_gradient);
  server.engine->clear_adapter(api::AdapterSlot{2});  // n's: a pass with both fails as a whole
  server.run();
  const auto* failure = std::get_if<api::Failure>(&server.posted["m-1"].at(0));
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->category, api::FaultCategory::kServer);
  EXPECT_THAT(failure->message, HasSubstr("the gradient of model m was dropped"));
  EXPECT_TRUE(std::holds_alternative<api::Failure>(server.posted["n-1"].at(0)));
  const auto& step = std::get<api::StepResult>(server.ask(command("m", 2, api::OptimStep{})));
  EXPECT_FALSE(step.stepped);
}

// Whatever is thrown is the answer of its request; nothing leaves the engine's thread.
TEST(RunnerFaults, NothingThrownLeavesARequest) {
  Server server;
  server.ask(create("m", {.rank = 4, .seed = 1}));
  // A huge count cannot be allocated: not an Error, and not of the others.
  api::Command huge = sample(*server.engine, "huge", 12, 3);
  std::get<api::Sample>(huge.op).num_samples = int64_t{1} << 60;
  api::SampleRows rows{std::make_shared<const api::Command>(huge), 0, 1};
  const std::vector<api::Result> results = server.runner.run({.samples = {rows}});
  ASSERT_EQ(results.size(), 1u);
  const auto* failure = std::get_if<api::Failure>(&results[0].outcome);
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->category, api::FaultCategory::kServer);
  EXPECT_EQ(server.message(sample(*server.engine, "fine", 12, 3)), "");
}

}  // namespace
}  // namespace strata::engine
