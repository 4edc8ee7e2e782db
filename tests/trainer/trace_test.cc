// SPDX-License-Identifier: Apache-2.0
// --trace from an option to its file: what a run leaves in it, and that the run is the same.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/files.h"
#include "trainer/train.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

class TraceOfATraining : public testing::Test {
 protected:
  TraceOfATraining() : dir_(fs::temp_directory_path() / "strata_trace_of_a_training_test") {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    std::ofstream data(dir_ / "data.jsonl");
    for (int i = 0; i < 8; ++i) {
      data << R"({"prompt": "What is )" << i << R"( plus 1?", "completion": " )" << i + 1
           << R"(."})" << "\n";
    }
  }
  ~TraceOfATraining() override { fs::remove_all(dir_); }

  [[nodiscard]] std::string path(const std::string& name) const { return (dir_ / name).string(); }
  [[nodiscard]] TrainOptions options(const std::string& out) const {
    TrainOptions o;
    o.model = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";
    o.data = {path("data.jsonl")};
    o.out = path(out);
    o.recompute = "full";
    o.steps = 2;
    o.threads = 2;
    return o;
  }

  fs::path dir_;
};

// How often each name stands in the row of a thread, and that bars of a row nest.
std::map<std::string, int> names_of_row(const json::value& root, const std::string& row) {
  int64_t tid = -1;
  std::map<std::string, int> names;
  std::vector<double> open;  // ends of the bars that are open
  for (const json::value& event : root.at("traceEvents").as_array()) {
    if (event.at("name") == "thread_name" && event.at("args").at("name").as_string() == row) {
      tid = event.at("tid").as_int64();
    }
    if (event.at("ph") != "X" || event.at("tid") != tid) continue;
    ++names[std::string(event.at("name").as_string())];
    const double begin = event.at("ts").to_number<double>();
    const double end = begin + event.at("dur").to_number<double>();
    constexpr double kRounding = 0.01;
    while (!open.empty() && open.back() <= begin + kRounding) open.pop_back();
    EXPECT_TRUE(open.empty() || end <= open.back() + kRounding) << event;
    open.push_back(end);
  }
  return names;
}

TEST_F(TraceOfATraining, HoldsPassesAndLayersAndChangesNothing) {
  ASSERT_EQ(run_train(options("plain")), 0);
  TrainOptions traced = options("traced");
  traced.trace = path("trace.json");
  ASSERT_EQ(run_train(traced), 0);
  constexpr int64_t kMost = 1 << 28;
  EXPECT_TRUE(read_file(path("plain/adapter_model.safetensors"), kMost) ==
              read_file(path("traced/adapter_model.safetensors"), kMost));
  EXPECT_FALSE(fs::exists(path("plain/trace.json")));
  const json::value root = json::parse(read_file(path("trace.json"), kMost));
  std::map<std::string, int> main = names_of_row(root, "main");
  EXPECT_EQ(main["step"], 2);
  EXPECT_EQ(main["optimizer step"], 2);
  EXPECT_EQ(main["backward"], 2);
  EXPECT_GE(main["forward"], 2);
  EXPECT_GE(main["save"], 1);
  const int num_layers = main["layer backward"] / 2;
  EXPECT_GE(num_layers, 1);
  EXPECT_EQ(main["recompute"], 2 * num_layers);
  EXPECT_EQ(main["gqa"], main["layer"] + main["layer backward"]);
  EXPECT_GT(names_of_row(root, "worker 1")["work"], 10);
}

// What goes to files and comes back has a row of its own.
TEST_F(TraceOfATraining, HasARowForWhatMovesActivations) {
  TrainOptions o = options("offloaded");
  o.trace = path("offloaded.json");
  o.recompute = "minimal_offloaded";
  o.offload = find_usable_offload_folder("");
  ASSERT_EQ(run_train(o), 0);
  const json::value root = json::parse(read_file(path("offloaded.json"), int64_t{1} << 28));
  std::map<std::string, int> names = names_of_row(root, "activations' files");
  const int num_layers = names_of_row(root, "main")["layer backward"] / 2;
  // Not the last layer's, with which backward begins.
  EXPECT_GE(num_layers, 2);
  EXPECT_GE(names["write behind"], 2 * (num_layers - 1));
  EXPECT_GE(names["read ahead"], 2 * (num_layers - 1));
}

TEST_F(TraceOfATraining, HasARowForEachRankOfAPipeline) {
  TrainOptions o = options("staged");
  o.trace = path("staged.json");
  o.batch_tokens = 100;
  o.stages = {.stages = 2, .schedule = "1f1b", .microbatches = 3};
  ASSERT_EQ(run_train(o), 0);
  const json::value root = json::parse(read_file(path("staged.json"), int64_t{1} << 28));
  for (const char* row : {"rank 0", "rank 1"}) {
    std::map<std::string, int> names = names_of_row(root, row);
    EXPECT_EQ(names["step"], 2) << row;
    EXPECT_EQ(names["B"], 2 * 3) << row;
    EXPECT_GE(names["F"], 2 * 3) << row;
    EXPECT_EQ(names["backward"], names["B"]) << row;
    EXPECT_EQ(names["forward"], names["F"]) << row;
    EXPECT_EQ(names["send"], names[row == std::string("rank 0") ? "F" : "B"]) << row;
    EXPECT_EQ(names["receive"], names[row == std::string("rank 0") ? "B" : "F"]) << row;
    EXPECT_EQ(names["loss"], row == std::string("rank 0") ? 0 : names["F"]) << row;
  }
}

TEST_F(TraceOfATraining, AFileThatCannotBeWrittenIsRefusedFirst) {
  TrainOptions o = options("out");
  o.trace = path("none/trace.json");
  EXPECT_THROW(run_train(o), Error);
  EXPECT_FALSE(fs::exists(o.out));
}

}  // namespace
}  // namespace strata::apps
