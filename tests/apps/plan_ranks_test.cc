// SPDX-License-Identifier: Apache-2.0
// strata plan train --ranks: what each rank is planned to send for a step, of a config alone, is
// what ranks that have the model send.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "backend/thread_comm.h"
#include "base/files.h"
#include "engine/plan/cost.h"
#include "engine/runner.h"
#include "model/adapter/specs.h"
#include "setup/sent_text.h"
#include "setup/stages.h"
#include "tests/apps/plan_run.h"
#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

// Of a step of three sequences of 40 tokens, as the options of plan() have it.
std::vector<engine::SentBytes> sent_by_ranks(const PlanOptions& options, int pipeline, int data) {
  StageOptions stages = options.stages;
  stages.stages = pipeline;
  stages.data = data;
  stages.microbatches = std::max(1, options.schedule.microbatches);
  const LoadSpec spec = read_spec(options);
  const engine::RunPlan run = {.pipeline = plan_stages(spec, stages)};
  const engine::PipelinePlan& plan = run.pipeline;
  std::vector<engine::SentBytes> sent(static_cast<size_t>(plan.num_ranks_in_all()));
  run_ranks(plan.num_ranks_in_all(), [&](Comm& comm) {
    const auto runner = load_runner(comm, run, spec, {.pass_tokens = options.micro_tokens});
    const bool is_lora = options.method == "lora";
    api::AdapterSlot slot = api::AdapterSlot::kBase;
    if (is_lora) {
      slot = runner->create_adapter(
          model::make_adapter_specs(runner->engine().config(), {"all-linear"}, options.rank, 1.0),
          1);
    } else {
      runner->enable_base_steps({});
    }
    const api::Datum datum = {.tokens = std::vector<int32_t>(40, 3),
                              .targets = std::vector<int32_t>(40, 5)};
    api::Batch batch = {.gradients =
                            is_lora ? api::Gradients::kAdapters : api::Gradients::kParameters};
    for (int i = 0; i < 3; ++i) batch.sequences.push_back({.datum = &datum, .slot = slot});
    runner->run(batch);
    runner->step(slot, {.lr = 1e-3});
    sent[static_cast<size_t>(comm.rank())] = runner->sent();
  });
  return sent;
}

TEST(PlanRanks, SayWhatRanksSend) {
  struct Case {
    int pipeline, data, microbatches;
    std::string method;
    int64_t micro_tokens = 2048;
    bool shards = false;
    int stages = 1;  // of each process
  };
  for (const Case& c :
       {Case{1, 2, 0, "lora", 40}, Case{1, 3, 0, "full"}, Case{2, 1, 3, "lora"},
        Case{2, 2, 1, "lora"}, Case{2, 2, 1, "full"}, Case{1, 2, 0, "lora", 40, true},
        Case{2, 2, 1, "lora", 2048, true}, Case{1, 3, 0, "full", 2048, true},
        Case{1, 2, 1, "full", 2048, false, 2}, Case{1, 2, 2, "lora", 2048, false, 2}}) {
    SCOPED_TRACE(std::to_string(c.pipeline) + " " + std::to_string(c.data) + " " + c.method);
    PlanOptions options = options_of_plan("qwen3");
    options.method = c.method;
    options.micro_tokens = c.micro_tokens;
    options.schedule.microbatches = c.microbatches;
    options.stages.shard_weights = c.shards;
    options.stages.stages = c.stages;
    options.stages.ranks =
        "pipeline=" + std::to_string(c.pipeline) + ",data=" + std::to_string(c.data);
    const boost::json::object planned = plan(options);
    const std::vector<engine::SentBytes> sent =
        sent_by_ranks(options, c.pipeline * c.stages, c.data);
    const boost::json::array& ranks = planned.at("ranks").as_array();
    ASSERT_EQ(ranks.size(), sent.size());
    EXPECT_EQ(planned.at("planned_sent_bytes"), boost::json::parse(sent_json(sent)));
    for (size_t rank = 0; rank < sent.size(); ++rank) {
      EXPECT_GT(sent[rank].total(), 0);
      EXPECT_EQ(ranks[rank].at("planned_sent_bytes"),
                boost::json::parse(sent_json({&sent[rank], 1})))
          << rank;
    }
  }
}

// --memory is of each rank: the less it is, the more rounds of shorter passes a step takes, and the
// more it costs.
TEST(PlanRanks, TakeWhatMemoryHolds) {
  PlanOptions options = options_of_plan("qwen3");
  options.tokens = "24x200";
  options.stages.ranks = "data=2";
  const auto rank_bytes = [](const boost::json::object& planned) {
    return planned.at("ranks").at(0).at("planned_bytes").as_int64();
  };
  const auto cost = [](const boost::json::object& planned) {
    return engine::Price().of({.flops = planned.at("flops_per_step").as_double(),
                               .bytes = planned.at("moved_bytes_per_step").as_double()});
  };
  const boost::json::object all = plan(options);
  boost::json::object last = all;
  const int64_t most = rank_bytes(all);
  for (int64_t bytes = most; bytes > 0; bytes -= most / 16) {
    options.memory = std::to_string(bytes);
    const std::string refused = fault(options);
    if (!refused.empty()) {
      EXPECT_THAT(refused, HasSubstr("at least; give more"));
      break;
    }
    const boost::json::object planned = plan(options);
    EXPECT_LE(rank_bytes(planned), bytes);
    EXPECT_EQ(planned.at("file_bytes"), 0);
    EXPECT_GE(cost(planned), cost(last));
    EXPECT_LE(planned.at("microbatch_tokens").as_int64(), last.at("microbatch_tokens").as_int64());
    last = planned;
  }
  EXPECT_EQ(all.at("microbatch_tokens"), 1200);
  EXPECT_EQ(last.at("microbatch_tokens"), 200);
  EXPECT_GT(cost(last), cost(all));
}

// Of each process: what the fullest takes, of one rank or of two.
TEST(PlanRanks, StagesTakeWhatAProcessHolds) {
  const std::string machine = ::testing::TempDir() + "/strata_plan_ranks.json";
  write_file_atomic(
      machine,
      R"({"bf16_flops":4e11,"f32_flops":1e11,"read_bytes_per_s":2e10,"file_bytes_per_s":1e9})");
  struct Case {
    std::string ranks;
    int alike = 1, each = 1;  // ranks with the same stages, and stages of a process
  };
  for (const Case& c : {Case{"pipeline=2"}, Case{"pipeline=4"}, Case{"pipeline=2", 1, 2},
                        Case{"pipeline=2,data=2", 2}, Case{"pipeline=2,data=2", 2, 2},
                        Case{"pipeline=2,tensor=2", 2}, Case{"pipeline=2,expert=2", 2}}) {
    SCOPED_TRACE(fmt::format("{} {}", c.ranks, c.each));
    PlanOptions options = options_of_plan("deepseek_v4");
    options.machine = machine;
    options.tokens = "24x200";
    options.stages.ranks = c.ranks;
    options.stages.stages = c.each;
    options.schedule.microbatches = 4;
    const auto fullest = [&](const boost::json::object& planned) {
      const boost::json::array& ranks = planned.at("ranks").as_array();
      int64_t most = 0, bytes = 0;
      for (size_t rank = 0, own = 0; rank < ranks.size(); rank += static_cast<size_t>(c.alike)) {
        bytes += ranks[rank].at("planned_bytes").as_int64();
        if (++own % static_cast<size_t>(c.each) > 0) continue;
        most = std::max(most, std::exchange(bytes, 0));
      }
      return most;
    };
    const boost::json::object all = plan(options);
    PlanOptions full = options;
    full.recompute = "full";
    const int64_t most = fullest(all), least = fullest(plan(full));
    ASSERT_LT(least, most);
    double last = all.at("seconds_per_step").as_double();
    for (int i = 0; i <= 4; ++i) {
      const int64_t bytes = most - (most - least) * i / 4;
      options.memory = std::to_string(bytes);
      const boost::json::object planned = plan(options);
      EXPECT_EQ(planned.at("ranks").as_array().size(), all.at("ranks").as_array().size());
      EXPECT_LE(fullest(planned), bytes);
      EXPECT_EQ(planned.at("file_bytes"), 0);
      const double seconds = planned.at("seconds_per_step").as_double();
      if (i > 0) {
        EXPECT_GE(seconds, last * (1 - 1e-9));
      }
      last = seconds;
    }
    options.memory = std::to_string(least / 2);
    EXPECT_THAT(fault(options), HasSubstr("the stages of a process take"));
  }
}

TEST(PlanRanks, AreARowEachOfATable) {
  const Ran ran = run_program({"plan", "train", path_of("qwen3"), "--tokens", "3x40", "--ranks",
                               "data=2", "--threads", "1"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const char* text : {"a step sends", "rank 0", "rank 1", "gradients", "one of 2 ranks'"})
    EXPECT_THAT(ran.out, HasSubstr(text));
}

TEST(PlanRanks, RefuseWhatHasNoEffect) {
  PlanOptions options = options_of_plan("qwen3");
  options.memory = "1GiB";
  options.stages.ranks = "data=2";
  options.offload = "/tmp";
  EXPECT_THAT(fault(options), HasSubstr("nothing that --memory chooses goes to files"));
  options.memory = options.offload = "";
  options.with_indexer_loss = true;
  EXPECT_THAT(fault(options), HasSubstr("--indexer-loss: no layer of "));
  options.with_indexer_loss = false;
  options.stages.ranks = "pipeline=2";
  options.stages.shard_weights = true;
  EXPECT_THAT(fault(options), HasSubstr("give --ranks data=N"));
  options.stages.shard_weights = false;
  options.stages.ranks = "tensor=2";
  EXPECT_THAT(fault(options), HasSubstr("layer 0, self_attn.k_proj.weight: 3 key/value heads"));
  options.model = path_of("llama2");
  EXPECT_EQ(fault(options), "");
  options.method = "full";
  EXPECT_EQ(fault(options), "");
  options.optimizer = "muon";
  EXPECT_THAT(fault(options), HasSubstr("--ranks tensor=2: Muon steps whole matrices"));
  options.optimizer = "adamw";
  options.method = "lora";
  options.stages.ranks = "tensor=2,pipeline=2";
  EXPECT_EQ(fault(options), "");
  options.stages.ranks = "tensor=3";
  EXPECT_EQ(fault(options),
            "--ranks tensor=3: layer 0, self_attn.q_proj.weight: 4 heads along its outputs are no "
            "multiple of 3; want a divisor of 4, which every row of the model has");
  const Ran ran =
      run_program({"plan", "train", path_of("qwen3"), "--tokens", "3x40", "--shard-weights"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--ranks"));
}

}  // namespace
}  // namespace strata::apps
