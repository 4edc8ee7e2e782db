// SPDX-License-Identifier: Apache-2.0
// strata train in stages: the files of one stage, also of runs that were killed.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <map>

#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

// Clang builds the sanitizers here, whose own memory counts in the peak.
#if defined(__clang__)
constexpr bool kPeakIsOurs = false;
#else
constexpr bool kPeakIsOurs = true;
#endif

TEST_F(TrainTest, StagesChangeNoBit) {
  TrainOptions one = options("one");
  one.model = deep_model();
  one.targets = "all-linear,embed_tokens,lm_head";
  one.steps = 5;
  ASSERT_EQ(run_train(one), 0);
  const std::vector<StageOptions> divisions = {
      {.stages = 2, .schedule = "1f1b", .microbatches = 3},
      {.stages = 3, .schedule = "gpipe", .microbatches = 2, .layers_per_stage = "1,1,1"},
      {.stages = 1, .chunks = 3, .schedule = "circular", .microbatches = 2},
      {.stages = 2, .microbatches = 1, .leftovers = "before"}};
  for (size_t i = 0; i < divisions.size(); ++i) {
    SCOPED_TRACE(i);
    TrainOptions divided = one;
    divided.out = root_ + "/divided" + std::to_string(i);
    divided.stages = divisions[i];
    divided.recompute = i % 2 == 1 ? "full" : "none";
    ASSERT_EQ(run_train(divided), 0);
    expect_same_files("one", "divided" + std::to_string(i),
                      {"adapter_model.safetensors", "adapter_config.json",
                       "trainer/optimizer.safetensors", "trainer/state.json"});
  }
}

TEST_F(TrainTest, StagesChangeNoBitOfAllParameters) {
  for (const char* const optimizer : {"adamw", "muon"}) {
    SCOPED_TRACE(optimizer);
    TrainOptions one = options(std::string("one-") + optimizer);
    one.model = deep_model();
    one.method = "full";
    one.optimizer = optimizer;
    one.dtype = "bf16";
    one.steps = 4;
    TrainOptions divided = run_and_move(one, std::string("divided-") + optimizer);
    divided.stages = {.stages = 3, .schedule = "zb1p", .microbatches = 3};
    ASSERT_EQ(run_train(divided), 0);
    expect_same_files(std::string("one-") + optimizer, std::string("divided-") + optimizer,
                      {"model.safetensors", "config.json", "tokenizer.json",
                       "trainer/optimizer.safetensors", "trainer/state.json"});
  }
}

// Names, checkpoints and losses are those of a run that makes nothing again, whatever of a stage
// is made again.
TEST_F(TrainTest, RecomputeByStageChangesNoBit) {
  TrainOptions one = options("one");
  one.model = deep_model();
  one.steps = 4;
  one.dtype = "bf16";
  ASSERT_EQ(run_train(one), 0);
  struct Way {
    const char *recompute, *iterations, *layers;
  };
  int count = 0;
  for (const Way& way :
       {Way{"full", "on", "off"}, Way{"full", "off", "off"}, Way{"save_qkv_proj", "on", "on"},
        Way{"minimal", "off", "on"}, Way{"custom:iteration_input", "on", "off"},
        Way{"custom:iteration_input,context,lora_h", "on", "on"}}) {
    SCOPED_TRACE(way.recompute);
    TrainOptions divided = one;
    const std::string name = "divided" + std::to_string(count++);
    divided.out = root_ + "/" + name;
    divided.recompute = way.recompute;
    divided.stages = {.stages = count % 2 == 0 ? 2 : 1,
                      .schedule = "1f1b",
                      .microbatches = 3,
                      .recompute_iterations = way.iterations,
                      .recompute_layers = way.layers};
    ASSERT_EQ(run_train(divided), 0);
    expect_same_files("one", name,
                      {"adapter_model.safetensors", "adapter_config.json",
                       "trainer/optimizer.safetensors", "trainer/state.json"});
  }
}

TEST_F(TrainTest, RecomputeByStageSaysWhatItNeeds) {
  TrainOptions o = options("out");
  o.model = deep_model();
  o.recompute = "full";
  o.stages.recompute_iterations = "on";
  EXPECT_EQ(fault(o),
            "--recompute-iterations and --recompute-layers: of a model in stages; give --stages or "
            "--microbatches");
  o.stages.stages = 2;
  o.recompute = "none";
  EXPECT_EQ(fault(o),
            "--recompute-iterations on: --recompute none keeps everything; give another policy");
  EXPECT_FALSE(fs::exists(o.out));
}

// How many bars of each name a thread's row has.
std::map<std::string, int> bars_of_row(const std::string& path, const std::string& row) {
  std::map<std::string, int> names;
  int64_t tid = -1;
  const boost::json::value root = boost::json::parse(content(path));
  for (const auto& event : root.at("traceEvents").as_array()) {
    if (event.at("name") == "thread_name" && event.at("args").at("name").as_string() == row) {
      tid = event.at("tid").as_int64();
    }
    if (event.at("ph") == "X" && event.at("tid") == tid) {
      ++names[std::string(event.at("name").as_string())];
    }
  }
  return names;
}

// The acceptance matrix of MaxText's PR #4288 in small: a model of Llama 2's shape, {normal,
// circular} x per-stage recompute {off, on}: one loss log, the same checkpoints, and a timeline
// each (bytes are tests/stages/recompute_test.cc).
TEST_F(TrainTest, LlamaByScheduleAndRecomputeByStage) {
  std::ofstream(root_ + "/config/config.json")
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 8,
      "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 512,
      "rms_norm_eps": 1e-05, "rope_theta": 10000, "tie_word_embeddings": false, "torch_dtype": "float32"})";
  const std::string llama = root_ + "/llama";
  ASSERT_EQ(run_init({.config = root_ + "/config", .out = llama, .seed = 1, .threads = 2}), 0);
  TrainOptions one = options("one");
  one.model = llama;
  one.method = "full";
  one.steps = 3;  // of an epoch, whose last step has few sequences
  ASSERT_EQ(run_train(one), 0);
  for (const bool circular : {false, true}) {
    for (const bool recompute : {false, true}) {
      const std::string name =
          std::string(circular ? "circular" : "normal") + (recompute ? "-recompute" : "");
      SCOPED_TRACE(name);
      TrainOptions divided = one;
      divided.out = root_ + "/" + name;
      divided.trace = root_ + "/" + name + ".json";
      divided.recompute = recompute ? "full" : "none";
      divided.stages = {.stages = 2,
                        .chunks = circular ? 2 : 1,
                        .schedule = circular ? "circular" : "gpipe",
                        .microbatches = 4,
                        .recompute_iterations = recompute ? "on" : "off",
                        .recompute_layers = recompute ? "off" : "on"};
      ASSERT_EQ(run_train(divided), 0);
      expect_same_files("one", name,
                        {"model.safetensors", "config.json", "trainer/optimizer.safetensors",
                         "trainer/state.json"});
      // Steps, micro-batches and stages; evaluations have forwards alone.
      const int backwards = 3 * 4 * (circular ? 2 : 1);
      for (const char* row : {"rank 0", "rank 1"}) {
        std::map<std::string, int> bars = bars_of_row(divided.trace, row);
        EXPECT_EQ(bars["B"], backwards) << row;
        EXPECT_GT(bars["F"], backwards) << row;
        EXPECT_EQ(bars["optimizer step"], 3) << row;
        EXPECT_EQ(bars["recompute stage"], recompute ? backwards : 0) << row;
      }
    }
  }
}

TEST_F(TrainTest, AKilledRunInStagesResumesInOthersToTheSameBits) {
  const StageOptions two = {.stages = 2, .schedule = "1f1b", .microbatches = 2};
  const StageOptions three = {.stages = 3, .schedule = "gpipe", .microbatches = 3};
  const auto resume_otherwise = [&](const TrainOptions& straight, const std::string& killed,
                                    const StageOptions& before, const StageOptions& after) {
    TrainOptions run = run_and_move(straight, killed), then = run;
    run.stages = before;
    then.stages = after;
    kill_and_resume(run, then);
  };
  TrainOptions straight = options("straight");
  straight.model = deep_model();
  resume_otherwise(straight, "killed", two, three);
  expect_same_files("straight", "killed",
                    {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
  straight.out = root_ + "/straight-full";
  straight.method = "full";
  resume_otherwise(straight, "killed-full", three, two);
  expect_same_files("straight-full", "killed-full",
                    {"model.safetensors", "trainer/optimizer.safetensors"});
}

TEST_F(TrainTest, RefusesStagesThatDoNotFitByTheirNumbers) {
  TrainOptions o = options("out");
  o.model = deep_model();
  const auto refused = [&](const StageOptions& stages) {
    TrainOptions divided = o;
    divided.stages = stages;
    return fault(divided);
  };
  const auto expect_in = [](const std::string& text, const std::string& message) {
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  expect_in("2 stages of 2 chunks are 4 chunks, and the model has 3 layers",
            refused({.stages = 2, .chunks = 2, .schedule = "circular", .microbatches = 2}));
  expect_in("2 stages with 4 layers, want 2 stages with the model's 3 layers",
            refused({.stages = 2, .layers_per_stage = "2,2"}));
  expect_in("got '0' in '3,0'", refused({.stages = 2, .layers_per_stage = "3,0"}));
  expect_in("2 ranks, 3 micro-batches, 1 chunks",
            refused({.stages = 2, .schedule = "circular", .microbatches = 3}));
  expect_in("--leftovers after: --layers-per-stage 2,1 leaves none over",
            refused({.stages = 2, .layers_per_stage = "2,1", .leftovers = "after"}));
}

// The JSON line of the program, run with these options in a process of its own.
boost::json::object line_of_run(const TrainOptions& o) {
  const std::string command = fmt::format(
      "{} train --model {} --data {} --out {} --method {} --rank {} --lr 0.01 --steps {} "
      "--batch-tokens {} --micro-tokens {} --threads 2 --json --stages {} --chunks {} "
      "--pipeline-schedule {} --microbatches {} --memory {} 2>/dev/null",
      STRATA_BINARY, o.model, o.data[0], o.out, o.method, o.rank, *o.steps, *o.batch_tokens,
      o.micro_tokens, o.stages.stages, o.stages.chunks, o.stages.schedule, o.stages.microbatches,
      o.memory);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(::popen(command.c_str(), "r"),
                                                            ::pclose);
  std::string line(1000, ' ');
  if (std::fgets(line.data(), static_cast<int>(line.size()), out.get()) == nullptr) return {};
  return boost::json::parse(line.substr(0, line.find('\n'))).as_object();
}

// Of a run with so much memory, where it can be.
std::optional<engine::RunPlan> staged_plan(const TrainOptions& o, int64_t memory) {
  TrainOptions within = o;
  within.memory = memory > 0 ? std::to_string(memory) : "";
  try {
    const LoadSpec spec = read_train_spec(within);
    const TrainData data = read_train_data(within, spec);
    return plan_train_run(spec, resolve_settings(within, spec, data), data).plan;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--memory " + within.memory), std::string::npos);
  }
  return {};
}

// What is made again, and weights in files, change no bit, and the process stays within what it was
// given, with every schedule's way of holding micro-batches.
TEST_F(TrainTest, StagesStayWithinAMemoryAndChangeNoBit) {
  TrainOptions one = wide_options("one");
  one.steps = 1;
  one.batch_tokens = 2400;
  one.micro_tokens = 2400;
  ASSERT_EQ(run_train(one), 0);
  const std::vector<StageOptions> divisions = {
      {.stages = 2, .schedule = "1f1b", .microbatches = 4},
      {.stages = 1, .schedule = "gpipe", .microbatches = 4}};
  int count = 0;
  for (const StageOptions& division : divisions) {
    TrainOptions divided = one;
    divided.stages = division;
    const std::optional<engine::RunPlan> all = staged_plan(divided, 0);
    ASSERT_TRUE(all);
    EXPECT_TRUE(all->recompute.recompute.keeps_all());
    // The frozen weights are more than half of it.
    for (const double share : {0.9, 0.5}) {
      const auto memory = static_cast<int64_t>(share * static_cast<double>(all->memory.total()));
      SCOPED_TRACE(fmt::format("{} {} bytes", division.schedule, memory));
      const std::optional<engine::RunPlan> plan = staged_plan(divided, memory);
      ASSERT_TRUE(plan);
      EXPECT_LE(plan->memory.total(), memory);
      EXPECT_TRUE(plan->weights_in_files || share > 0.5);
      divided.out = root_ + "/divided" + std::to_string(count);
      divided.memory = std::to_string(memory);
      const boost::json::object line = line_of_run(divided);
      ASSERT_TRUE(line.contains("peak_bytes"));
      EXPECT_EQ(line.at("planned_bytes"), plan->memory.total());
      if (kPeakIsOurs) {
        EXPECT_LE(line.at("peak_bytes").as_int64(), memory);
      }
      expect_same_files("one", "divided" + std::to_string(count++),
                        {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
    }
  }
}

}  // namespace
}  // namespace strata::apps
