// SPDX-License-Identifier: Apache-2.0
// strata plan --memory: what it chooses stays within so much, and is in files where that costs less
// and there is room for them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "backend/file_memory.h"
#include "base/files.h"
#include "base/process_memory.h"
#include "model/adapter/specs.h"
#include "setup/engine_setup.h"
#include "tests/apps/plan_run.h"

namespace strata::apps {
namespace {

// While it lives no folder is there for files without names.
class NoTemporaryFolder {
 public:
  NoTemporaryFolder() { ::setenv("TMPDIR", "/no/such/folder", 1); }
  ~NoTemporaryFolder() {
    was_.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", was_.c_str(), 1);
  }
  NoTemporaryFolder(const NoTemporaryFolder&) = delete;
  NoTemporaryFolder& operator=(const NoTemporaryFolder&) = delete;

 private:
  const std::string was_ = std::getenv("TMPDIR") == nullptr ? "" : std::getenv("TMPDIR");
};

// A machine that is fixed, so that plans can be compared; one that is slow at each thing in turn.
constexpr const char* kMachines[] = {
    R"({"bf16_flops":4e11,"f32_flops":1e11,"read_bytes_per_s":2e10,"file_bytes_per_s":1e9})",
    R"({"bf16_flops":1e10,"f32_flops":1e10,"read_bytes_per_s":2e10,"file_bytes_per_s":2e9})",
    R"({"bf16_flops":4e12,"f32_flops":4e12,"read_bytes_per_s":1e10,"file_bytes_per_s":1e8})"};
constexpr const char* kFastFiles =
    R"({"bf16_flops":4e11,"f32_flops":1e11,"read_bytes_per_s":2e10,"file_bytes_per_s":4e11})";

TEST(PlanMemory, StaysWithinTheMemory) {
  const NoTemporaryFolder in_memory;
  bool any_list = false;
  for (const char* model : {"qwen3", "deepseek_v4"}) {
    PlanOptions options = options_of_plan(model);
    const int64_t most = plan(options).at("planned_bytes").as_int64();
    options.recompute = "full";
    const int64_t least = plan(options).at("planned_bytes").as_int64();
    ASSERT_LT(least, most);
    options.recompute = "none";
    double last = 1e300;
    for (int64_t bytes = least; bytes < most; bytes += (most - least + 7) / 8) {
      options.memory = std::to_string(bytes);
      const boost::json::object line = plan(options);
      EXPECT_LE(line.at("planned_bytes").as_int64(), bytes) << model;
      const double flops = line.at("flops_per_step").as_double();
      EXPECT_LE(flops, last) << model << ": more memory, more work";
      last = flops;
      const auto layers = static_cast<size_t>(
          make_planning_engine(read_plan_spec({.model = options.model}))->config().num_layers());
      for (const auto& [tag, decision] : line.at("decisions").as_object()) {
        if (!decision.is_array()) continue;
        any_list = true;
        EXPECT_EQ(decision.as_array().size(), layers) << tag;
      }
    }
    options.memory = "1MiB";
    EXPECT_NE(fault(options).find("--memory 1MiB: adapters and optimizer take"), std::string::npos);
  }
  EXPECT_TRUE(any_list) << "no budget keeps a tag in some layers alone";
}

// Tokens of a pass are chosen too: as many as are asked for where they fit, fewer where only these
// do; and without a folder for them files are used where nothing else fits.
TEST(PlanMemory, ChoosesTheLengthOfPassesAndFiles) {
  const NoTemporaryFolder in_memory;
  PlanOptions options = options_of_plan("qwen3");
  options.tokens = "8x256";
  const boost::json::object whole = plan(options);
  EXPECT_EQ(whole.at("microbatch_tokens").as_int64(), 2048);
  const auto with = [&](int64_t bytes) {
    options.memory = std::to_string(bytes);
    return plan(options);
  };
  const int64_t most = whole.at("planned_bytes").as_int64();
  EXPECT_EQ(with(most).at("microbatch_tokens").as_int64(), 2048);
  EXPECT_EQ(with(most).at("file_bytes").as_int64(), 0);
  options.memory.clear();
  options.micro_tokens = 256;
  options.recompute = "full";
  const int64_t least = plan(options).at("planned_bytes").as_int64();
  options.micro_tokens = 2048;
  options.recompute = "none";
  const boost::json::object short_passes = with(least);
  EXPECT_EQ(short_passes.at("microbatch_tokens").as_int64(), 256);
  EXPECT_EQ(short_passes.at("passes_per_step").as_double(), 8.0);
  EXPECT_EQ(short_passes.at("file_bytes").as_int64(), 0);
  const boost::json::object in_files = with(least - 1);
  EXPECT_GT(in_files.at("file_bytes").as_int64(), 0);
  EXPECT_LT(in_files.at("planned_bytes").as_int64(), least);
}

// Files in the folder of temporary files are used as those in a folder that is named, as far as the
// system has room for them.
TEST(PlanMemory, UsesFilesThatNobodyNamedWhereTheyCostLess) {
  if (find_usable_offload_folder("").empty()) GTEST_SKIP() << "TMPDIR is held in memory";
  PlanOptions options = options_of_plan("deepseek_v4");
  options.machine = testing::TempDir() + "strata_plan_fast_files.json";
  write_file_atomic(options.machine, kFastFiles);
  const int64_t most = plan(options).at("planned_bytes").as_int64();
  options.recompute = "full";
  const int64_t least = plan(options).at("planned_bytes").as_int64();
  options.recompute = "none";
  int64_t most_in_files = 0;
  for (int64_t bytes = least; bytes < most; bytes += (most - least) / 3) {
    options.memory = std::to_string(bytes);
    options.offload.clear();
    const boost::json::object unnamed = plan(options);
    options.offload = offload_folder("");
    const boost::json::object named = plan(options);
    for (const char* key : {"planned_bytes", "file_bytes", "decisions", "flops_per_step"})
      EXPECT_EQ(unnamed.at(key), named.at(key)) << key << ' ' << bytes;
    most_in_files = std::max(most_in_files, named.at("file_bytes").as_int64());
  }
  EXPECT_GT(most_in_files, 0);
  std::filesystem::remove(options.machine);
}

// Nor more than half of what is left on the disk, which others may change meanwhile.
TEST(PlanMemory, LeavesFilesThatNobodyNamedAFifthOfTheMemoryBesideTheBudget) {
  const planner::FileSpace named = measure_space_for_files("/tmp");
  EXPECT_TRUE(named.holds(int64_t{1} << 50, int64_t{1} << 50));
  if (!find_usable_offload_folder("").empty()) {
    const int64_t disk = FileAllocator::free_bytes(offload_folder("")) / 2;
    ASSERT_GT(disk, 0);
    planner::FileSpace unnamed = measure_space_for_files("");
    EXPECT_NEAR(static_cast<double>(unnamed.most), static_cast<double>(disk),
                0.01 * static_cast<double>(disk));
    unnamed.most = INT64_MAX;
    const int64_t fifth = (unnamed.memory - (100 << 20)) / 5;
    EXPECT_TRUE(unnamed.holds(fifth, 100 << 20));
    EXPECT_FALSE(unnamed.holds(fifth + 1, 100 << 20));
    EXPECT_FALSE(unnamed.holds(1, unnamed.memory));
  }
  const NoTemporaryFolder in_memory;
  EXPECT_FALSE(measure_space_for_files("").holds(1, 0));
}

// What the system has no room for is planned in memory where it fits there.
TEST(PlanMemory, KeepsToTheRoomForFiles) {
  const auto engine = make_planning_engine(read_plan_spec({.model = path_of("deepseek_v4")}));
  planner::TrainRun run = {.whole = *engine, .is_loaded = true};
  planner::RunShape& shape = run.shape;
  shape.micro_tokens = 256;
  shape.lengths = {256};
  shape.longest = shape.step_tokens = 256;
  shape.pass.backward = true;
  shape.pass.modules = model::make_adapter_specs(engine->config(), {"all-linear"}, 8, 8.0);
  shape.price.file_byte = 1.0;
  const auto bytes_of = [&](const model::Recompute& recompute) {
    run.recompute = recompute;
    return planner::plan_run(run).memory.total();
  };
  const int64_t most = bytes_of(model::Recompute::kNone);
  const int64_t least = bytes_of(model::Recompute::kFull);
  int64_t compared = 0;
  for (int64_t bytes = least; bytes < most; bytes += (most - least) / 6) {
    run.memory = {.bytes = bytes, .text = std::to_string(bytes)};
    const auto in_files_of = [&] { return planner::plan_run(run).recompute.file_bytes; };
    shape.file_space.most = INT64_MAX;
    const int64_t in_files = in_files_of();
    if (in_files == 0) continue;
    ++compared;
    shape.file_space.most = in_files;
    EXPECT_EQ(in_files_of(), in_files);
    --shape.file_space.most;
    EXPECT_LT(in_files_of(), in_files);
    shape.file_space.most = 0;
    EXPECT_EQ(in_files_of(), 0);
  }
  EXPECT_GT(compared, 0);
}

// Plans of sequences in passes of several lengths, with files in a folder that is named, or not.
class PlansWithin {
 public:
  PlansWithin(const std::string& model, const char* machine, const std::string& method)
      : options_(options_of_plan(model)) {
    options_.tokens = "6x256";
    options_.method = method;
    options_.machine = testing::TempDir() + "strata_plan_within.json";
    write_file_atomic(options_.machine, machine);
  }
  ~PlansWithin() { std::filesystem::remove(options_.machine); }
  PlansWithin(const PlansWithin&) = delete;
  PlansWithin& operator=(const PlansWithin&) = delete;

  void offload() { options_.offload = testing::TempDir(); }
  [[nodiscard]] boost::json::object of_policy(std::string_view policy) {
    options_.memory.clear();
    options_.recompute = policy;
    PlanOptions own = options_;
    own.offload.clear();  // which serves --memory
    return plan(own);
  }
  // Nothing where not even the least fits.
  [[nodiscard]] std::optional<boost::json::object> within(int64_t bytes) {
    options_.recompute = "none";
    options_.memory = std::to_string(bytes);
    try {
      return plan(options_);
    } catch (const Error&) {
      ::testing::internal::GetCapturedStdout();
      return std::nullopt;
    }
  }

 private:
  PlanOptions options_;
};

double seconds_of(const boost::json::object& line) {
  return line.at("seconds_per_step").as_double();
}

// Whatever is traded for it: work, files, or the length of passes.
TEST(PlanMemory, MoreOfItNeverPlansMoreTime) {
  const auto expect_monotone = [](const char* model, const char* machine, const char* method,
                                  bool named) {
    PlansWithin plans(model, machine, method);
    if (named) plans.offload();
    const int64_t most = plans.of_policy("none").at("planned_bytes").as_int64();
    double last = 1e300;
    int64_t num_plans = 0;
    for (int64_t bytes = most / 2; bytes <= most + most / 20; bytes += most / 24) {
      const std::optional<boost::json::object> line = plans.within(bytes);
      if (!line) {
        EXPECT_EQ(num_plans, 0) << "more memory holds no plan";
        continue;
      }
      ++num_plans;
      EXPECT_LE(line->at("planned_bytes").as_int64(), bytes) << model << ' ' << method;
      EXPECT_LE(seconds_of(*line), last * (1 + 1e-12))
          << model << ' ' << method << ' ' << machine << ' ' << bytes;
      last = seconds_of(*line);
    }
    EXPECT_GE(num_plans, 3) << model << ' ' << method;
  };
  for (const char* machine : kMachines) {
    expect_monotone("qwen3", machine, "lora", machine != kMachines[1]);
  }
  expect_monotone("qwen3", kMachines[0], "full", true);
  expect_monotone("deepseek_v4", kMachines[2], "lora", true);
}

// A policy with a name is never faster than what the memory that it takes is planned for.
TEST(PlanMemory, NoPolicyWithANameIsFaster) {
  for (const char* model : {"qwen3", "deepseek_v4"}) {
    for (const char* machine : {kMachines[0], kFastFiles}) {
      PlansWithin plans(model, machine, "lora");
      plans.offload();
      std::vector<std::string> names = {"none", "full"};
      for (const model::RecomputePreset& preset : model::recompute_presets())
        names.emplace_back(preset.name);
      for (const std::string& name : names) {
        const boost::json::object named = plans.of_policy(name);
        const auto line = plans.within(named.at("planned_bytes").as_int64());
        ASSERT_TRUE(line) << name;
        EXPECT_LE(seconds_of(*line), seconds_of(named) * (1 + 1e-12))
            << model << ' ' << name << ' ' << machine;
      }
    }
  }
}

}  // namespace
}  // namespace strata::apps
