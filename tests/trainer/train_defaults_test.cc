// SPDX-License-Identifier: Apache-2.0
// strata train with what it derives itself: enough steps to learn from the data that there are, and
// the same run when it is resumed.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>

#include "data/batch_defaults.h"
#include "tests/trainer/train_fixture.h"
#include "trainer/state.h"

namespace strata::apps {
namespace {

std::vector<double> evaluations(const std::string& out) {
  std::vector<double> values;
  for (const auto& record : report::read_metrics(out + "/metrics.jsonl")) {
    if (std::isfinite(record.number("eval_loss"))) values.push_back(record.number("eval_loss"));
  }
  return values;
}

class TrainDefaultsTest : public TrainTest {
 protected:
  // Nothing but what has no default.
  [[nodiscard]] TrainOptions bare(const std::string& out) const {
    TrainOptions o;
    o.model = model();
    o.data = {root_ + "/data.jsonl"};
    o.out = root_ + "/" + out;
    o.threads = 2;
    return o;
  }
  [[nodiscard]] static TrainSettings settled(const TrainOptions& o) {
    const LoadSpec spec = read_train_spec(o);
    return resolve_settings(o, spec, read_train_data(o, spec));
  }
  static std::string said(const TrainOptions& o) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(run_train(o), 0);
    return testing::internal::GetCapturedStderr();
  }
};

// The command that the README begins with.
TEST_F(TrainDefaultsTest, TheBundledModelLearnsTheBundledAnswers) {
  TrainOptions o = bare("out");
  o.model = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";
  o.data = {std::string(STRATA_SOURCE_DIR) + "/examples/answers.jsonl"};
  const std::string text = said(o);
  const std::vector<double> values = evaluations(o.out);
  ASSERT_GE(values.size(), 2u);
  EXPECT_LE(values.back(), 0.2 * values.front());
  // In the field's words, and as the field compares models.
  EXPECT_NE(text.find(fmt::format("evaluation loss  {:.4f} -> {:.4f} nats per token",
                                  values.front(), values.back())),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(fmt::format("perplexity       {:.4g} -> {:.4g}", std::exp(values.front()),
                                  std::exp(values.back()))),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("teaches little"), std::string::npos) << text;
  EXPECT_EQ(text.find("held out"), std::string::npos) << text;
  EXPECT_EQ(text.find("made again"), std::string::npos) << text;
}

TEST_F(TrainDefaultsTest, FollowTheDataTheModelAndEachOther) {
  const TrainOptions given = bare("out");
  const TrainSettings o = settled(given);
  EXPECT_EQ(o.batch_size, 1);  // of 38 examples
  EXPECT_EQ(o.batch_tokens, data::kBatchTokens);
  EXPECT_EQ(o.epochs, 3);
  EXPECT_EQ(o.warmup_steps, 6);  // a twentieth of 114
  EXPECT_EQ(o.lr, default_learning_rate("lora", 32, 1));
  EXPECT_EQ(default_learning_rate("lora", 576, 8), 5e-4);
  EXPECT_EQ(default_learning_rate("lora", 576, 0), 5e-4);
  EXPECT_EQ(default_learning_rate("lora", 576, 2), 2.5e-4);
  EXPECT_EQ(default_learning_rate("lora", 4096, 32), 2e-4);
  TrainOptions full = bare("out");
  full.method = "full";
  EXPECT_EQ(settled(full).lr, 1e-5);
  TrainOptions ratio = bare("out");
  ratio.warmup_ratio = 0.25;
  EXPECT_EQ(settled(ratio).warmup_steps, 29);
}

TEST_F(TrainDefaultsTest, GradientAccumulationMultipliesTheBatch) {
  TrainOptions product = bare("product");
  product.batch_size = 6;
  product.epochs = 3;
  ASSERT_EQ(run_train(product), 0);
  TrainOptions accumulated = product;
  accumulated.out = root_ + "/accumulated";
  accumulated.batch_size = 2;
  accumulated.gradient_accumulation_steps = 3;
  ASSERT_EQ(run_train(accumulated), 0);
  EXPECT_EQ(settled(product).batch_size, 6);
  expect_same_files("product", "accumulated", {"adapter_model.safetensors", "trainer/state.json"});
  EXPECT_EQ(std::ssize(losses("product")), 3 * 7 + 11);  // 38 examples by 6; evaluations
}

TEST_F(TrainDefaultsTest, FewStepsAreWarnedOf) {
  TrainOptions o = bare("out");
  o.batch_tokens = 8192;
  const std::string text = said(o);
  EXPECT_NE(text.find("10 steps only, which teaches little: give more --epochs (now 10), a smaller "
                      "--batch-size, or more examples"),
            std::string::npos)
      << text;
  o = bare("by steps");
  o.steps = 19;
  EXPECT_NE(said(o).find("19 steps only"), std::string::npos);
  o = bare("enough");
  o.steps = 20;
  EXPECT_EQ(said(o).find("steps only"), std::string::npos);
}

TEST_F(TrainDefaultsTest, WhatExcludesEachOtherIsRefused) {
  TrainOptions o = bare("out");
  o.warmup_steps = 3;
  o.warmup_ratio = 0.1;
  EXPECT_EQ(fault(o),
            "--warmup-ratio and --warmup-steps: both say how long the warmup is; give one");
  o = bare("out");
  o.gradient_accumulation_steps = 2;
  EXPECT_EQ(fault(o), "--gradient-accumulation-steps: multiplies --batch-size; give that with it");
  o = bare("out");
  o.data = {root_ + "/nofile.jsonl"};
  EXPECT_EQ(
      fault(o),
      "--data: " + o.data[0] +
          ": no such file; want JSONL, JSON or CSV, a folder of them, ORG/NAME of a data set in "
          "the hub's cache, or - for stdin");
  o = bare("out");
  o.eval = {root_ + "/nofile.jsonl"};
  EXPECT_EQ(
      fault(o),
      "--eval: " + o.eval[0] +
          ": no such file; want JSONL, JSON or CSV, a folder of them, ORG/NAME of a data set in "
          "the hub's cache, or - for stdin");
  o = bare("out");
  o.memory = "10";
  EXPECT_EQ(fault(o),
            "--memory: got '10', which is 10 bytes; want at least 1MiB, with its unit: 12GiB");
  EXPECT_FALSE(fs::exists(o.out));
}

// Options that followed the data are the run's: to resume it nobody has to know them, and others
// are refused.
TEST_F(TrainDefaultsTest, AResumedRunKeepsWhatWasDerived) {
  TrainOptions o = bare("out");
  ASSERT_EQ(run_train(o), 0);
  o.resume = true;
  EXPECT_EQ(run_train(o), 0);
  const TrainSettings was = settled(o);
  TrainOptions named = o;
  named.batch_size = was.batch_size;
  named.epochs = was.epochs;
  named.lr = was.lr;
  named.warmup_ratio = 0.05;
  EXPECT_EQ(run_train(named), 0);
  TrainOptions other = o;
  other.epochs = 4;
  EXPECT_NE(fault(other).find("epochs: was \"3\", now \"4\""), std::string::npos) << fault(other);
  other = o;
  other.steps = 200;
  EXPECT_NE(fault(other).find("steps: was \"0\", now \"200\""), std::string::npos) << fault(other);
}

// A run that was begun before batches and epochs followed the data goes on with what they were.
TEST_F(TrainDefaultsTest, ARunOfAnOlderVersionIsResumed) {
  TrainOptions o = bare("out");
  o.batch_tokens = 8192;
  o.epochs = 1;
  o.warmup_steps = 10;
  o.lr = 2e-4;
  ASSERT_EQ(run_train(o), 0);
  // As version 0.1.0 wrote it.
  const std::string path = o.out + "/trainer/state.json";
  boost::json::object state = boost::json::parse(content(path)).as_object();
  boost::json::object& options = state["options"].as_object();
  state["format"] = 2;
  options["lr"] = "default";
  options["schedule"] = options["lr-schedule"];
  options.erase("lr-schedule");
  options.erase("batch-size");
  std::ofstream(path) << boost::json::serialize(state);
  const std::string before = content(o.out + "/adapter_model.safetensors");
  TrainOptions again = bare("out");
  again.resume = true;
  EXPECT_EQ(fault(again), "no error");
  EXPECT_EQ(content(o.out + "/adapter_model.safetensors"), before);
  TrainOptions other = again;
  other.lr = 1e-3;
  EXPECT_NE(fault(other).find("lr: was \"0.0002\", now \"0.001\""), std::string::npos);
  const std::string twice = R"({"step":1,)" + content(path).substr(1);
  std::ofstream(path) << twice;
  const std::string message = fault(again);
  EXPECT_NE(message.find(path + ": JSON at byte "), std::string::npos) << message;
  EXPECT_NE(message.find("the key \"step\" appears twice"), std::string::npos) << message;
}

// One name of the pipeline's schedule everywhere, beside what probe and bench called it.
TEST_F(TrainDefaultsTest, ThePipelinesScheduleHasOneName) {
  ProbeOptions probe;
  BenchOptions bench;
  TrainOptions train;
  for (OptionTable table : {option_table_of(probe), option_table_of(bench)}) {
    const OptionRow* row = table.find("pipeline-schedule");
    ASSERT_NE(row, nullptr);
    EXPECT_EQ(row->aliases, std::vector<std::string>{"schedule"});
  }
  const OptionTable table = option_table_of(train);
  EXPECT_TRUE(table.find("pipeline-schedule")->aliases.empty());
  EXPECT_EQ(table.find("lr-schedule")->aliases, std::vector<std::string>{"schedule"});
}

TEST_F(TrainDefaultsTest, TheFieldsNamesAndTheOldOnesAreRead) {
  const auto run = [](const std::string& arguments) {
    return std::system((std::string(STRATA_BINARY) + " " + arguments + " 2>/dev/null >&2").c_str());
  };
  const std::string common =
      "train --model " + model() + " --data " + root_ + "/data.jsonl --steps 3 --out " + root_;
  EXPECT_EQ(run(common + "/new --learning-rate 1e-3 --lr-schedule linear --batch-size 4"), 0);
  EXPECT_EQ(run(common + "/old --lr 1e-3 --schedule linear --batch-size 2 "
                         "--gradient-accumulation-steps 2"),
            0);
  expect_same_files("new", "old", {"adapter_model.safetensors", "trainer/state.json"});
}

}  // namespace
}  // namespace strata::apps
