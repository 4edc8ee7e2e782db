// SPDX-License-Identifier: Apache-2.0
// How a model is divided and what a pipeline refuses, beside its bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <numeric>

#include "backend/thread_comm.h"
#include "base/error.h"
#include "engine/pipeline/stage_plan.h"
#include "engine/pipeline/stage_runner.h"
#include "engine/runner.h"
#include "model/blocks/experts/moe.h"
#include "model/weights/init.h"
#include "ops/cpu/cpu_backend.h"
#include "schedule/csv.h"
#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

using model::LayerRange;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(BalancedLayers, LargestCostIsLeast) {
  const std::vector<double> costs = {1, 1, 1, 1, 1, 1};
  EXPECT_THAT(balance_layers(costs, 0, 0, 3),
              ElementsAre(LayerRange{0, 2}, LayerRange{2, 4}, LayerRange{4, 6}));
  // The head is worth two layers.
  EXPECT_THAT(balance_layers(costs, 0, 2, 2), ElementsAre(LayerRange{0, 4}, LayerRange{4, 6}));
  EXPECT_THAT(balance_layers(costs, 3, 0, 2), ElementsAre(LayerRange{0, 1}, LayerRange{1, 6}));
  const std::vector<double> uneven = {5, 1, 1, 1, 5};
  EXPECT_THAT(balance_layers(uneven, 0, 0, 3),
              ElementsAre(LayerRange{0, 1}, LayerRange{1, 4}, LayerRange{4, 5}));
  // However much it costs, a run has a layer.
  EXPECT_THAT(balance_layers(costs, 0, 100, 6).back(), (LayerRange{5, 6}));
  EXPECT_THAT(balance_layers({}, 1, 1, 1), ElementsAre(LayerRange{0, 0}));
}

std::string fault_of(const schedule::Table& table) {
  try {
    const std::vector<double> costs(static_cast<size_t>(table.num_stages), 1.0);
    make_pipeline_plan(table, 1, balance_layers(costs, 0, 0, table.num_stages));
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(PipelinePlan, RefusesWhatCannotRun) {
  EXPECT_EQ(fault_of(schedule::generate(
                {.kind = schedule::Kind::kZb1p, .num_ranks = 2, .num_microbatches = 4})),
            "none");
  const std::string weights = "0F0,0F1,0I0,0I1,0W1,0W0\n1F0,1F1,1I0,1I1,1W0,1W1\n";
  EXPECT_THAT(fault_of(schedule::read_csv(weights, "weights").table),
              HasSubstr("0W0 comes after that of micro-batch 1"));
  const std::string descending = "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n";
  EXPECT_THAT(fault_of(schedule::read_csv(descending, "descending").table),
              HasSubstr("backwards must ascend"));
  const std::string ascending = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n";
  EXPECT_EQ(fault_of(schedule::read_csv(ascending, "ascending").table), "none");
}

TEST(PipelinePlan, SaysWhereStagesAndLayersAre) {
  const PipelinePlan plan = staged_plan({.num_layers = 5,
                                         .num_ranks = 2,
                                         .num_chunks = 2,
                                         .kind = schedule::Kind::kCircular,
                                         .num_microbatches = 2});
  EXPECT_THAT(plan.stages_of(0), ElementsAre(0, 2));
  EXPECT_THAT(plan.stages_of(1), ElementsAre(1, 3));
  for (int stage = 0; stage < 4; ++stage) {
    const LayerRange& range = plan.layers[static_cast<size_t>(stage)];
    for (int64_t layer = range.first; layer < range.last; ++layer) {
      EXPECT_EQ(plan.stage_of_layer(layer), stage);
    }
  }
}

api::Batch batch_of_lengths(const std::vector<size_t>& lengths, std::deque<api::Datum>& data) {
  api::Batch batch;
  for (const size_t length : lengths) {
    const api::Datum& datum = data.emplace_back(api::Datum{.tokens = std::vector<int32_t>(length)});
    batch.sequences.push_back({.datum = &datum});
  }
  return batch;
}

// All rounds of a plan that divides by the number of micro-batches, or of a whole model's.
std::vector<Round> rounds_of(const api::Batch& batch, int num_microbatches, int64_t pass_tokens) {
  PipelinePlan plan = make_whole_plan(1);
  plan.table.num_microbatches = num_microbatches;
  std::vector<Round> rounds;
  Round round;
  while (next_round(plan, pass_tokens, batch, round)) rounds.push_back(round);
  return rounds;
}

TEST(Rounds, AreWholeSequencesOfAboutAsManyTokens) {
  std::deque<api::Datum> data;
  const api::Batch batch = batch_of_lengths({4, 4, 4, 4, 16}, data);
  const std::vector<Round> halves = rounds_of(batch, 2, 1);
  ASSERT_EQ(halves.size(), 1u);
  EXPECT_THAT(halves[0].firsts, ElementsAre(0, 4, 5));
  EXPECT_THAT(halves[0].first_rows, ElementsAre(0, 16, 32));
  EXPECT_THAT(rounds_of(batch, 4, 1).at(0).firsts, ElementsAre(0, 2, 3, 4, 5));
  EXPECT_THAT(rounds_of(batch, 9, 1).at(0).firsts, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Rounds, LeaveOneForEach) {
  std::deque<api::Datum> data;
  api::Batch batch = batch_of_lengths({1, 1, 1, 90}, data);
  EXPECT_THAT(rounds_of(batch, 4, 1).at(0).firsts, ElementsAre(0, 1, 2, 3, 4));
  std::swap(batch.sequences[0], batch.sequences[3]);
  EXPECT_THAT(rounds_of(batch, 3, 1).at(0).firsts, ElementsAre(0, 1, 2, 4));
}

// As few rounds as passes allow, and of as many passes as there are ranks.
TEST(Rounds, AreDealtOut) {
  std::deque<api::Datum> data;
  const api::Batch batch = batch_of_lengths({4, 4, 4, 4, 4, 4, 9, 4}, data);
  const PipelinePlan plan = make_whole_plan(1);
  const auto firsts_of = [&](int num_ranks, int64_t pass_tokens) {
    std::vector<std::vector<size_t>> all;
    Round round;
    round.dealt = 1;
    round.num_dealt = num_ranks;
    while (next_round(plan, pass_tokens, batch, round)) {
      EXPECT_EQ(round.place_of(0), 1u);
      EXPECT_FALSE(round.has(1));
      all.push_back(round.firsts);
    }
    return all;
  };
  EXPECT_THAT(firsts_of(2, 100), ElementsAre(ElementsAre(0, 5, 8)));
  EXPECT_THAT(firsts_of(3, 100), ElementsAre(ElementsAre(0, 3, 6, 8)));
  EXPECT_THAT(firsts_of(2, 8),
              ElementsAre(ElementsAre(0, 2, 3), ElementsAre(3, 5, 6), ElementsAre(6, 7, 8)));
}

// Of a whole model each has a pass; neighbours share it that take gradients alike.
TEST(Rounds, OfAWholeModelHoldAPass) {
  std::deque<api::Datum> data;
  api::Batch batch = batch_of_lengths({4, 4, 9, 1, 1, 1}, data);
  batch.gradients = api::Gradients::kAdapters;
  batch.sequences[4].gradients = false;
  const std::vector<Round> rounds = rounds_of(batch, 1, 8);
  ASSERT_EQ(rounds.size(), 5u);
  const size_t firsts[] = {0, 2, 3, 4, 5, 6};
  const int64_t rows[] = {0, 8, 17, 18, 19, 20};
  for (size_t i = 0; i < rounds.size(); ++i) {
    EXPECT_THAT(rounds[i].firsts, ElementsAre(firsts[i], firsts[i + 1])) << i;
    EXPECT_THAT(rounds[i].first_rows, ElementsAre(rows[i], rows[i + 1])) << i;
    EXPECT_EQ(rounds[i].backward, i != 3) << i;
  }
}

// Each parameter has memory on one stage, a matrix that embedding and head share on two; all other
// rows of the table are the whole model's.
TEST(StageWeights, HoldTheirOwn) {
  for (const char* name : {"qwen3", "deepseek_v4", "qwen3_moe"}) {
    const StagedCase c = {.model = name, .num_layers = 6};
    const model::ModelConfig config = staged_config(c);
    CpuBackend backend(choose_cpu_path(), 1);
    const model::ModelWeights whole(backend, config, DType::kF32);
    std::vector<int> holders(whole.table().size());
    int64_t bytes = 0;
    for (const LayerRange range : {LayerRange{0, 1}, LayerRange{1, 5}, LayerRange{5, 6}}) {
      const model::LoadedModel stage = model::init_model(backend, config, DType::kF32, 1, range);
      const model::ModelWeights& weights = *stage.weights;
      bytes += weights.num_bytes();
      ASSERT_EQ(weights.table().size(), whole.table().size());
      for (size_t i = 0; i < holders.size(); ++i) {
        const model::Parameter& parameter = weights.table()[i];
        EXPECT_EQ(parameter.name, whole.table()[i].name);
        EXPECT_EQ(parameter.held, !parameter.panel.empty() || !parameter.values.empty());
        if (parameter.layer >= 0) {
          EXPECT_EQ(parameter.held, range.contains(parameter.layer));
        }
        holders[i] += parameter.held ? 1 : 0;
      }
    }
    int64_t twice = 0;
    for (size_t i = 0; i < holders.size(); ++i) {
      const bool shared = config.tie_word_embeddings && i == whole.embedding_index();
      EXPECT_EQ(holders[i], shared ? 2 : 1) << whole.table()[i].name;
      if (shared) twice = Arena::aligned(whole.table()[i].panel.num_bytes());
    }
    EXPECT_EQ(bytes, whole.num_bytes() + twice) << name;
  }
}

// A fault of a request is found by every rank before anything runs, and is told once.
TEST(Pipeline, FaultOfABatchIsAnErrorOnAllRanks) {
  const StagedCase c = {.num_ranks = 3};
  const PipelinePlan plan = staged_plan(c);
  api::Datum datum = {.tokens = {1, 2, 1'000'000}, .targets = {2, 3, 4}};
  api::Batch batch = {.sequences = {{.datum = &datum}}};
  const auto run = [&] {
    run_ranks(plan.num_ranks(),
              [&](Comm& comm) { Runner(comm, plan, staged_engines(c, comm, plan)).run(batch); });
  };
  try {
    run();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("sequences[0].tokens[2]"));
  }
}

void expect_taken(const StagePlan& planned, StageRunner& runner) {
  SCOPED_TRACE(runner.stage());
  EXPECT_EQ(planned.pass_bytes, runner.pass_bytes());
  EXPECT_EQ(planned.held_bytes, runner.held_bytes());
  EXPECT_EQ(planned.offloaded_bytes, runner.offloaded_bytes());
  EXPECT_EQ(planned.border_bytes, runner.border_bytes());
  EXPECT_EQ(planned.peak_deferred, runner.peak_deferred());
  EXPECT_EQ(planned.deferred_bytes, runner.deferred_bytes());
  EXPECT_EQ(planned.peak_live, runner.peak_live());
  EXPECT_EQ(planned.weight_bytes, runner.engine().model().weights->num_bytes());
}

// Stages take what they were planned to: weights, what trains, and their passes, as many of them
// as in flight at once.
TEST(StagePlans, AreWhatIsTaken) {
  for (const bool parameters : {false, true}) {
    for (const schedule::Kind kind : {schedule::Kind::kGpipe, schedule::Kind::k1f1b,
                                      schedule::Kind::kInterleaved, schedule::Kind::kZb1p}) {
      const bool offloads = kind == schedule::Kind::k1f1b;
      const StagedCase c = {.num_layers = 7,
                            .num_ranks = 2,
                            .num_chunks = kind == schedule::Kind::kInterleaved ? 2 : 1,
                            .kind = kind,
                            .num_microbatches = 4,
                            .offloads = offloads};
      const PipelinePlan plan = staged_plan(c);
      const auto trains = parameters ? api::Gradients::kParameters : api::Gradients::kAdapters;
      api::Datum datum = {.tokens = std::vector<int32_t>(9, 1),
                          .targets = std::vector<int32_t>(9, 2)};
      datum.inputs[api::LossInput::kWeights].assign(9, 1.0f);
      run_ranks(plan.num_ranks(), [&](Comm& comm) {
        Runner pipeline(comm, plan, staged_engines(c, comm, plan));
        const auto specs = model::make_adapter_specs(pipeline.engine().config(),
                                                     {"all-linear", "lm_head"}, 2, 4.0);
        std::map<int, int64_t> adapter_bytes;  // before there is one
        for (const auto& runner : pipeline.stages()) {
          adapter_bytes[runner->stage()] =
              plan_stage(plan, runner->stage(), runner->engine(),
                         {.pass_tokens = 9, .modules = specs, .backward = true})
                  .training_bytes;
        }
        const api::AdapterSlot slot = pipeline.create_adapter(specs, 1);
        pipeline.for_adapter(slot, [](model::LoraAdapter& a) { a.enable_training(); });
        if (parameters) pipeline.enable_base_steps({});
        std::map<int, StagePlan> plans;
        for (const auto& runner : pipeline.stages()) {
          plans[runner->stage()] = plan_stage(plan, runner->stage(), runner->engine(),
                                              {.pass_tokens = 9,
                                               .modules = specs,
                                               .backward = true,
                                               .train_base = parameters,
                                               .alone = true});
        }
        api::Batch batch = {.gradients = trains};
        for (int m = 0; m < c.num_microbatches; ++m) {
          batch.sequences.push_back({.datum = &datum, .slot = slot});
        }
        pipeline.run(batch);
        for (const auto& runner : pipeline.stages()) {
          const StagePlan& planned = plans[runner->stage()];
          expect_taken(planned, *runner);
          EXPECT_EQ(planned.offloaded_bytes > 0, offloads);
          EXPECT_EQ(planned.deferred_bytes > 0, parameters && kind == schedule::Kind::kZb1p);
          const int64_t taken = runner->engine().adapter(slot).num_bytes();
          EXPECT_EQ(adapter_bytes.at(runner->stage()), taken);
          EXPECT_GT(planned.training_bytes, taken - 1);
        }
        // 1f1b holds a micro-batch for each rank from here to the last, gpipe all.
        if (kind == schedule::Kind::k1f1b) {
          EXPECT_EQ(peak_live(plan, 0), 2);
          EXPECT_EQ(peak_live(plan, 1), 1);
        }
        if (kind == schedule::Kind::kGpipe) {
          EXPECT_EQ(peak_live(plan, 1), 4);
        }
      });
    }
  }
}

// A sequence that is longer than a pass, in a memory that holds less than its layers' inputs.
TEST(Pipeline, ALongSequenceHasItsLayersInputsInFiles) {
  const StagedCase c = {.num_layers = 6, .num_ranks = 2, .pass_tokens = 16};
  PipelinePlan plan = staged_plan(c);
  plan.any_length = true;
  EngineOptions options = staged_options(c);
  options.offload = ::testing::TempDir();
  constexpr int64_t kLength = 200;
  const api::Datum datum = {.tokens = std::vector<int32_t>(kLength, 1),
                            .targets = std::vector<int32_t>(kLength, 2)};
  std::vector<float> want;
  for (const bool limited : {false, true}) {
    run_ranks(plan.num_ranks(), [&](Comm& comm) {
      Runner pipeline(comm, plan, staged_engines(c, comm, plan, options));
      StageRunner& stage = *pipeline.stages().front();
      Engine& engine = stage.engine();
      const api::AdapterSlot slot = pipeline.create_adapter(
          model::make_adapter_specs(engine.config(), {"all-linear"}, 2, 4.0), 1);
      pipeline.for_adapter(slot, &stir);
      if (limited) {
        const PassPlan full = plan_pass(engine, {.pass_tokens = kLength,
                                                 .backward = true,
                                                 .recompute = model::Recompute::kFull,
                                                 .alone = true,
                                                 .in_stages = true});
        engine.set_limits(c.pass_tokens, 1 << 20, 0, full.total() + full.kept() - 1);
      }
      pipeline.run(
          {.sequences = {{.datum = &datum, .slot = slot}}, .gradients = api::Gradients::kAdapters});
      EXPECT_EQ(stage.offloaded_bytes() > 0, limited) << comm.rank();
      const model::LoraAdapter* adapter = pipeline.gather().adapter(slot);
      if (adapter == nullptr) return;
      const HostAccess access(engine.backend().allocator());
      const TensorView gradients = adapter->gradients();
      const std::vector<float> got(gradients.f32(),
                                   gradients.f32() + gradients.shape.num_elements());
      if (!limited) want = got;
      EXPECT_EQ(got, want);
    });
  }
}

// Keeps what each rank sends.
class RecordingComm : public Comm {
 public:
  using Messages = std::map<int64_t, std::vector<std::byte>>;  // by tag
  RecordingComm(Comm& comm, Messages& sent) : comm_(comm), sent_(sent) {}
  [[nodiscard]] int rank() const override { return comm_.rank(); }
  [[nodiscard]] int size() const override { return comm_.size(); }
  void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) override {
    const auto* begin = static_cast<const std::byte*>(data);
    sent_[tag].assign(begin, begin + bytes);
    comm_.send_bytes(to, tag, data, bytes);
  }
  void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) override {
    comm_.receive_bytes(from, tag, data, bytes);
  }

 private:
  Comm& comm_;
  Messages& sent_;
};

// Chaining: what a stage is sent is the state that one stage has before that layer, for every
// micro-batch, and back comes a gradient for each.
TEST(Pipeline, EachStageIsSentTheStateBeforeItsLayers) {
  for (const schedule::Kind kind : {schedule::Kind::kGpipe, schedule::Kind::kCircular}) {
    const StagedCase c = {.model = "deepseek_v4",
                          .num_layers = 5,
                          .num_ranks = 2,
                          .num_chunks = kind == schedule::Kind::kCircular ? 2 : 1,
                          .kind = kind,
                          .num_microbatches = 2,
                          .again = Again::kStageOfItsInput};
    const PipelinePlan plan = staged_plan(c);
    std::vector<api::Datum> data;
    for (const size_t length : {5, 3}) {
      data.push_back({.tokens = std::vector<int32_t>(length, static_cast<int32_t>(length)),
                      .targets = std::vector<int32_t>(length, 7)});
    }
    api::Batch batch = {.gradients = api::Gradients::kParameters};
    for (const api::Datum& datum : data) batch.sequences.push_back({.datum = &datum});
    std::vector<RecordingComm::Messages> sent(static_cast<size_t>(plan.num_ranks()));
    run_ranks(plan.num_ranks(), [&](Comm& comm) {
      RecordingComm recording(comm, sent[static_cast<size_t>(comm.rank())]);
      Runner pipeline(recording, plan, staged_engines(c, comm, plan));
      pipeline.run(batch);
    });
    auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), 1);
    auto model = model::init_model(*backend, staged_config(c), c.dtype, 3);
    Engine whole(std::move(backend), std::move(model), {});
    api::Batch wanted = batch;
    wanted.gradients = api::Gradients::kNone;
    wanted.want_hidden_states = true;
    api::TensorSink sink;
    Runner(whole).run(wanted, &sink);
    const api::NamedTensor& states = sink.at("hidden_states");
    const int64_t rows = states.shape[1], width = states.shape[2];
    for (int stage = 0; stage < plan.num_stages(); ++stage) {
      for (int m = 0; m < 2; ++m) {
        SCOPED_TRACE(stage * 10 + m);
        const int64_t tag = 2 * (static_cast<int64_t>(stage) * 2 + m);
        if (stage > 0) {
          const RecordingComm::Messages& from =
              sent[static_cast<size_t>(plan.ranks[static_cast<size_t>(stage - 1)])];
          const int64_t layer = plan.layers[static_cast<size_t>(stage)].first;
          const float* want = states.values.data() + (layer * rows + (m == 0 ? 0 : 5)) * width;
          const std::vector<std::byte>& got = from.at(tag);
          ASSERT_EQ(std::ssize(got), (m == 0 ? 5 : 3) * width * dtype_bytes(DType::kF32));
          EXPECT_EQ(std::memcmp(got.data(), want, got.size()), 0);
        }
        if (stage + 1 < plan.num_stages()) {
          const RecordingComm::Messages& from =
              sent[static_cast<size_t>(plan.ranks[static_cast<size_t>(stage + 1)])];
          EXPECT_EQ(std::ssize(from.at(tag + 1)),
                    (m == 0 ? 5 : 3) * width * dtype_bytes(DType::kF32));
        }
      }
    }
  }
}

// Bubbles compute nothing, so that a stage counts the rows of its tokens and no others, once.
TEST(Pipeline, LoadsAreThoseOfTheTokens) {
  for (const schedule::Kind kind : {schedule::Kind::kGpipe, schedule::Kind::kCircular}) {
    for (const Again again : {Again::kNothing, Again::kLayers, Again::kBoth}) {
      const StagedCase c = {.model = "deepseek_moe",
                            .num_layers = 6,
                            .num_ranks = 3,
                            .num_chunks = kind == schedule::Kind::kCircular ? 2 : 1,
                            .kind = kind,
                            .num_microbatches = 3,
                            .again = again};
      const PipelinePlan plan = staged_plan(c);
      std::vector<api::Datum> data;
      api::Batch batch = {.gradients = api::Gradients::kParameters};
      for (const size_t length : {4, 6, 3}) {
        data.push_back({.tokens = std::vector<int32_t>(length, static_cast<int32_t>(length)),
                        .targets = std::vector<int32_t>(length, 7)});
      }
      for (const api::Datum& datum : data) batch.sequences.push_back({.datum = &datum});
      std::atomic<int> routers = 0;
      run_ranks(plan.num_ranks(), [&](Comm& comm) {
        Runner pipeline(comm, plan, staged_engines(c, comm, plan));
        pipeline.enable_base_steps({.router_bias_rate = 0.5});
        pipeline.run(batch);
        for (const auto& runner : pipeline.stages()) {
          Engine& engine = runner->engine();
          const auto& loads = engine.base_trainer().gradients()->expert_loads;
          for (const size_t index : engine.base_trainer().router_bias_indices()) {
            const model::Parameter& parameter = engine.model().weights->table()[index];
            EXPECT_EQ(loads[index].empty(), !parameter.held);
            if (!parameter.held) continue;
            ++routers;
            const auto* moe =
                engine.config().find_block_config<model::MoeConfig>(parameter.layer, model::kMoe);
            ASSERT_NE(moe, nullptr);
            EXPECT_EQ(std::accumulate(loads[index].begin(), loads[index].end(), int64_t{0}),
                      13 * moe->top_k);
          }
        }
      });
      EXPECT_EQ(routers, 3);  // each on one stage
    }
  }
}

// A gradient that is not finite is dropped on every stage, and weights stay as they were.
TEST(Pipeline, DropsAGradientThatIsNotFinite) {
  const StagedCase c = {.num_layers = 4,
                        .num_ranks = 2,
                        .num_chunks = 2,
                        .kind = schedule::Kind::kCircular,
                        .num_microbatches = 2};
  const PipelinePlan plan = staged_plan(c);
  api::Datum datum = {.tokens = {1, 2, 3}, .targets = {2, 3, 4}};
  datum.inputs[api::LossInput::kWeights] = {1.0f, std::numeric_limits<float>::infinity(), 1.0f};
  run_ranks(plan.num_ranks(), [&](Comm& comm) {
    Runner pipeline(comm, plan, staged_engines(c, comm, plan));
    const api::AdapterSlot slot = pipeline.create_adapter(
        model::make_adapter_specs(pipeline.engine().config(), {"all-linear"}, 2, 4.0), 1);
    const api::Batch batch = {.sequences = {{.datum = &datum, .slot = slot}},
                              .gradients = api::Gradients::kAdapters};
    pipeline.run(batch);
    EXPECT_THROW(pipeline.step(slot, {}), Error);
    pipeline.for_adapter(slot, [](const model::LoraAdapter& adapter) {
      EXPECT_FALSE(adapter.has_gradient);
      EXPECT_EQ(adapter.step, 0);
    });
    EXPECT_FALSE(pipeline.step(slot, {}).stepped);
  });
}

}  // namespace
}  // namespace strata::engine
