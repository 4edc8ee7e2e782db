// SPDX-License-Identifier: Apache-2.0
// strata plan: of a model's config alone it says what an engine with the model, and an adapter that
// trains, would say; within the memory that is given; and what it draws.
#include "apps/plan/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>

#include "apps/bench/shapes.h"
#include "apps/serve/engine_host.h"
#include "apps/serve/memory.h"
#include "base/error.h"
#include "base/files.h"
#include "engine/plan/cost.h"
#include "model/adapter/specs.h"
#include "setup/engine_setup.h"
#include "setup/stages.h"
#include "tests/apps/plan_run.h"

namespace strata::apps {
namespace {

constexpr const char* kModels[] = {"qwen3",        "gemma3",    "qwen2",       "deepseek_mla",
                                   "deepseek_moe", "qwen3_moe", "qwen3_5_moe", "deepseek_v4",
                                   "gpt_oss",      "lfm2"};

// An engine with its weights and an adapter or optimizer, and the shape of the options' step.
struct Loaded {
  std::unique_ptr<engine::Engine> engine;
  planner::RunShape shape = {
      .pass = {.backward = true}, .lengths = {40, 40, 40}, .longest = 40, .step_tokens = 120};

  Loaded(const std::string& model, bool is_lora, model::UseMtp mtp = model::UseMtp::kNever,
         model::WithIndexers indexers = model::WithIndexers::kNo)
      : engine(load_engine(
            read_spec({.model = path_of(model), .dtype = "bf16", .threads = 2, .mtp = mtp}))) {
    shape.pass.mtp = engine->config().use_mtp;
    if (!is_lora) {
      shape.pass.train_base = true;
      engine->enable_base_steps();
      return;
    }
    shape.pass.modules = model::make_adapter_specs(engine->config(), {"all-linear"}, 4, 4.0,
                                                   model::ExpertRank::kDivided, indexers);
    engine->adapter(engine->create_adapter(shape.pass.modules, 1)).enable_training();
  }
  [[nodiscard]] engine::RunPlan plan(int64_t micro_tokens,
                                     const model::Recompute& recompute) const {
    planner::TrainRun run = {.whole = *engine, .shape = shape, .recompute = recompute};
    run.shape.micro_tokens = micro_tokens;
    return planner::plan_run(run);
  }
};

TEST(Plan, OfTheConfigIsThatOfTheModel) {
  for (const char* model : kModels) {
    for (const char* method : {"lora", "full"}) {
      for (const char* policy : {"none", "full", "save_qkv_proj", "qkv_proj_offloaded"}) {
        PlanOptions options = options_of_plan(model);
        options.method = method;
        options.recompute = policy;
        const boost::json::object line = plan(options);
        Loaded loaded(model, options.method == "lora");
        const engine::RunPlan wanted =
            loaded.plan(options.micro_tokens, parse_recompute(policy).policy);
        const std::string where = fmt::format("{} {} {}", model, method, policy);
        EXPECT_EQ(line.at("planned_bytes").as_int64(), wanted.memory.total()) << where;
        EXPECT_EQ(line.at("microbatch_tokens").as_int64(), 120) << where;
        EXPECT_EQ(line.at("passes_per_step").as_double(), 1.0) << where;
        EXPECT_EQ(line.at("flops_per_step").as_double(), wanted.work.front().flops) << where;
        EXPECT_GT(line.at("seconds_per_step").as_double(), 0.0) << where;
        const boost::json::object& decisions = line.at("decisions").as_object();
        EXPECT_EQ(decisions.at("decoder_layer_input"), "keep");
        EXPECT_EQ(line.at("file_bytes").as_int64(), wanted.recompute.file_bytes) << where;
        EXPECT_EQ(wanted.recompute.file_bytes > 0, wanted.recompute.recompute.offloads_any());
        for (const auto& row : wanted.recompute.rows) {
          const bool kept = wanted.recompute.recompute.keeps(row.layers[0], row.tag);
          const bool gone = wanted.recompute.recompute.offloads(row.layers[0], row.tag);
          EXPECT_EQ(decisions.at(row.tag), gone   ? "offload"
                                           : kept ? "keep"
                                                  : "recompute")
              << where << ' ' << row.tag;
        }
      }
    }
  }
}

// A layer more, with its own activations, and embedding and head once more.
TEST(Plan, HasMultiTokenPredictionWhereItIsAskedFor) {
  for (const char* method : {"lora", "full"}) {
    PlanOptions options = options_of_plan("deepseek_v4_mtp");
    options.method = method;
    const int64_t without = plan(options).at("planned_bytes").as_int64();
    options.with_mtp = true;
    const boost::json::object line = plan(options);
    Loaded loaded("deepseek_v4_mtp", options.method == "lora", model::UseMtp::kAlways);
    const engine::RunPlan wanted = loaded.plan(options.micro_tokens, model::Recompute::kNone);
    EXPECT_EQ(line.at("planned_bytes").as_int64(), wanted.memory.total()) << method;
    EXPECT_GT(wanted.memory.total(), without) << method;
    EXPECT_TRUE(line.at("decisions").as_object().contains("mtp_embedding"));
  }
  PlanOptions options = options_of_plan("qwen3");
  options.with_mtp = true;
  EXPECT_NE(fault(options).find("no layer of multi-token prediction"), std::string::npos);
}

// Its scores and gradients, and with adapters its modules.
TEST(Plan, HasTheLossOfIndexersWhereItIsAskedFor) {
  for (const char* method : {"lora", "full"}) {
    PlanOptions options = options_of_plan("deepseek_v4_mtp");
    options.method = method;
    const int64_t without = plan(options).at("planned_bytes").as_int64();
    options.with_indexer_loss = true;
    const int64_t with = plan(options).at("planned_bytes").as_int64();
    EXPECT_GE(with, without) << method;
    Loaded loaded("deepseek_v4_mtp", options.method == "lora", model::UseMtp::kNever,
                  model::WithIndexers::kYes);
    loaded.shape.pass.indexer_loss = true;
    const engine::RunPlan wanted = loaded.plan(options.micro_tokens, model::Recompute::kNone);
    EXPECT_EQ(with, wanted.memory.total()) << method;
  }
  PlanOptions options = options_of_plan("qwen3");
  options.with_indexer_loss = true;
  EXPECT_NE(fault(options).find("no layer of"), std::string::npos);
}

// The products of a forward pass are those that its backend counts: matrices of the layers, and of
// the head. Of latent attention some are part of the attention itself.
TEST(Plan, CountsTheProductsThatPassesRun) {
  for (const char* model :
       {"qwen3", "gemma3", "qwen2", "qwen3_moe", "qwen3_5_moe", "deepseek_v4"}) {
    const auto engine = make_planning_engine(read_plan_spec({.model = path_of(model)}));
    const model::ModelConfig& config = engine->config();
    const int64_t weights =
        engine::num_layer_weights(config) + config.vocab_size * config.hidden_size;
    EXPECT_EQ(engine::plan_pass(*engine, {.pass_tokens = 32}).flops,
              2.0 * 32.0 * static_cast<double>(weights))
        << model;
  }
}

// DeepSeek-V4-Flash's layers by hand: projections, keys of the window, entries (of these those that
// the indexer lists, and its scores), streams and experts.
TEST(Plan, CountsDeepSeekV4AsItsFormula) {
  const double s = 4096, d = 4096, q = 1024, h = 64, o = 1024, w = 128, k = 512;
  const double projections = 2 * s * (d * q + q * 512 * h + 512 * d + 512 * h * o + 8 * o * d);
  const double local = 4 * h * 512 * (s * w - w * w / 2);
  const double heavy = 4 * s * d * 512 + 2 * h * 512 * s * s / 128;
  const double indexer =
      2 * s * (q * 8192 + 64 * d) + 4 * s * d * 256 + s * s / 4 * (64 * 128 + 64);
  const double part = k / (s / 4);
  const double sparse =
      4 * s * d * 1024 + indexer + 4 * h * 512 * (s * s / 4) * (part - part * part / 2);
  const double streams = 2 * (2 * s * 4 * d * 24 + 2 * s * 4 * d + 4 * s * d + 2 * s * 16 * d);
  const double experts = 6 * s * d * 2048 * (6 + 1) + 2 * s * d * 16;
  const double head = 2.0 * 32768 * d;  // of the last position
  const double wanted = 4 * (projections + local + streams + experts) + 2 * (heavy + sparse) + head;
  const model::ModelConfig config = bench_config(BenchShape::kDeepseekV4);
  ASSERT_EQ(config.num_layers(), 4);
  EXPECT_NEAR(engine::prefill_work(config, 4096).flops, wanted, 1e-9 * wanted);
}

// Reading and computing hide half of the shorter one, reads at 0.9 and products at 0.85 of the
// limit.
TEST(Plan, DecodingComputesWhileItReads) {
  const engine::MachineLimits limits = {.flops = 100, .bytes = 10};
  EXPECT_DOUBLE_EQ(engine::decode_seconds({.flops = 170, .bytes = 9}, limits), 2.5);
  EXPECT_DOUBLE_EQ(engine::decode_seconds({.flops = 85, .bytes = 36}, limits), 4.5);
  EXPECT_DOUBLE_EQ(engine::decode_seconds({.flops = 85, .bytes = 36, .cache_bytes = 18}, limits),
                   5.5);
}

// A rule in f32 goes by what the machine does of that, whatever its products do.
TEST(Plan, RulesInF32HaveTheSpeedOfF32) {
  const engine::MachineLimits limits = {.flops = 100, .f32_flops = 25, .bytes = 10};
  EXPECT_DOUBLE_EQ(engine::seconds_of({.flops = 850, .f32_flops = 85}, limits), 9.0 + 4.0);
  EXPECT_DOUBLE_EQ(engine::decode_seconds({.flops = 170, .f32_flops = 85}, limits), 1.0 + 4.0);
}

// What a gated delta rule computes of a step is in f32, and nothing of other blocks is.
TEST(Plan, CountsTheDeltaRuleInF32) {
  const Loaded other("qwen3", true);
  EXPECT_EQ(other.plan(80, model::Recompute::kNone).work.front().f32_flops, 0.0);
  const Loaded hybrid("qwen3_5_moe", true);
  double rules = 0.0;
  for (const model::LayerConfig& layer : hybrid.engine->config().layers) {
    for (const model::Sublayer& sublayer : layer) {
      const model::BlockWork work = sublayer.block.ops().work(sublayer.block.config());
      rules += work.token_flops + work.token_backward_flops;
    }
  }
  EXPECT_GT(rules, 0.0);
  const engine::RunPlan plan = hybrid.plan(80, model::Recompute::kNone);
  EXPECT_DOUBLE_EQ(plan.work.front().f32_flops,
                   rules * static_cast<double>(hybrid.shape.step_tokens));
}

// And so do exponentials of attention, 33 operations of f32 each.
TEST(Plan, ExponentialsTakeTime) {
  const engine::MachineLimits limits = {.flops = 100, .f32_flops = 33, .bytes = 10};
  EXPECT_DOUBLE_EQ(engine::seconds_of({.flops = 85, .exponentials = 17}, limits), 1.0 + 20.0);
  const model::ModelConfig config = bench_config(BenchShape::kQwen3Dense);
  EXPECT_DOUBLE_EQ(engine::prefill_work(config, 512).exponentials,
                   28.0 * 16.0 * 512.0 * 512.0 / 2.0);
}

// What is made again takes time, and so does every pass.
TEST(Plan, PredictsMoreTimeForMoreWork) {
  const Loaded loaded("qwen3", true);
  const engine::MachineLimits limits = {.flops = 1e9, .bytes = 1e9};
  const auto seconds = [&](int64_t micro_tokens, const model::Recompute& recompute) {
    return engine::step_seconds(loaded.plan(micro_tokens, recompute), limits);
  };
  EXPECT_LT(seconds(2048, model::Recompute::kNone), seconds(2048, model::Recompute::kFull));
  EXPECT_LT(seconds(2048, model::Recompute::kNone), seconds(40, model::Recompute::kNone));
  EXPECT_EQ(loaded.plan(80, model::Recompute::kNone).num_passes, 2.0);
}

TEST(Plan, DrawsTheFrontAPointForEachPolicyAndThePlan) {
  PlanOptions options = options_of_plan("qwen3");
  options.svg = testing::TempDir() + "strata_plan.svg";
  plan(options);
  const std::string text = read_file(options.svg, 1 << 20);
  // Policies that come to the same share a dot and its label; the plan has one of its own.
  size_t circles = 0;
  for (size_t at = text.find("<circle"); at != std::string::npos; at = text.find("<circle", at + 1))
    ++circles;
  EXPECT_GE(circles, 3u);
  EXPECT_LE(circles, model::recompute_presets().size() + 2 + 1);
  EXPECT_NE(text.find(">full"), std::string::npos);
  for (const model::RecomputePreset& preset : model::recompute_presets()) {
    EXPECT_NE(text.find(preset.name), std::string::npos) << preset.name;
  }
  EXPECT_NE(text.find("fastest that fits"), std::string::npos);
  std::filesystem::remove(options.svg);
}

constexpr int64_t kServerMemory = int64_t{512} << 20;

PlanOptions options_of_serving(const std::string& model) {
  PlanOptions options = options_of_plan(model);
  options.tokens.clear();
  options.rank = PlanOptions().rank;
  options.memory = "512MiB";
  options.max_rank = 64;
  return options;
}

std::vector<engine::PlanRow> rows_of_requests() {
  server::ServeOptions requests;
  server::resolve_size_limits(requests, kServerMemory);
  return request_rows(server::Budget(requests));
}

TEST(Plan, OfServingIsThatOfAServer) {
  PlanOptions options = options_of_serving("qwen3");
  const boost::json::object line = plan(options, "serve");
  const auto engine =
      load_engine(read_spec({.model = options.model, .dtype = "bf16", .threads = 2}));
  const engine::RunPlan wanted = planner::plan_run({.models = {{.stages = {engine.get()}}},
                                                    .memory = kServerMemory,
                                                    .max_rank = options.max_rank,
                                                    .max_sample_rows = 256,
                                                    .requests = rows_of_requests()});
  EXPECT_EQ(line.at("longest_datum").as_int64(), wanted.server.longest_data[0]);
  EXPECT_EQ(line.at("adapters_of_rank_32").as_int64(),
            wanted.memory.bytes_of(engine::MemoryUse::kAdapters) / wanted.server.slot_rank_32);
  EXPECT_EQ(line.at("samples_of_2048").as_int64(),
            wanted.memory.bytes_of(engine::MemoryUse::kKvCache) / wanted.server.sample_bytes);
  options.memory = "1MiB";
  EXPECT_NE(fault(options, "serve").find("memory: at least"), std::string::npos);
}

// Drafts take the layer's weights, its part of the cache, and rows behind those of a step.
TEST(Plan, OfServingWithDraftsIsThatOfAServer) {
  PlanOptions options = options_of_serving("deepseek_v4_mtp");
  const auto bytes_of = [&](const char* speculate, int64_t drafts) {
    SCOPED_TRACE(fmt::format("{} {}", speculate, drafts));
    options.speculate = speculate;
    options.draft_tokens = drafts;
    const boost::json::object line = plan(options, "serve");
    const EngineHost host({options.model},
                          {.dtype = "bf16",
                           .threads = 2,
                           .offload = find_usable_offload_folder(options.offload),
                           .memory = kServerMemory,
                           .requests = rows_of_requests(),
                           .adapters = {.max_rank = options.max_rank},
                           .draft_tokens = resolve_draft_tokens(speculate, drafts)});
    const engine::RunPlan& booked = host.plan();
    const auto& bytes = line.at("bytes").as_object();
    using enum engine::MemoryUse;
    for (const auto& [item, use] : std::initializer_list<std::pair<const char*, engine::MemoryUse>>{
             {"weights", kWeights},
             {"passes", kPasses},
             {"sampling_steps", kSamplingSteps},
             {"kv_cache", kKvCache},
             {"states", kStates},
             {"adapters", kAdapters}})
      EXPECT_EQ(bytes.at(item).as_int64(), booked.memory.bytes_of(use)) << item;
    EXPECT_EQ(line.at("longest_datum").as_int64(), booked.server.longest_data[0]);
    EXPECT_EQ(line.at("samples_of_2048").as_int64(),
              (booked.memory.bytes_of(engine::MemoryUse::kKvCache) +
               booked.memory.bytes_of(engine::MemoryUse::kStates)) /
                  booked.server.sample_bytes);
    return bytes;
  };
  const auto without = bytes_of("none", 1), with = bytes_of("mtp", 1), three = bytes_of("mtp", 3);
  EXPECT_GT(with.at("weights").as_int64(), without.at("weights").as_int64());
  EXPECT_GT(with.at("sampling_steps").as_int64(), without.at("sampling_steps").as_int64());
  EXPECT_GT(three.at("sampling_steps").as_int64(), with.at("sampling_steps").as_int64());
  EXPECT_THROW(resolve_draft_tokens("none", 3), Error);
  const std::string without_drafts = path_of("qwen3");
  options.model = without_drafts;
  EXPECT_NE(fault(options, "serve").find("no layer of multi-token prediction"), std::string::npos);
  const auto served = [&](const std::vector<std::string>& models) {
    HostOptions host;
    host.threads = 2;
    host.memory = kServerMemory;
    host.draft_tokens = 1;
    return EngineHost(models, host).bases().size();
  };
  EXPECT_THROW(served({without_drafts}), Error);
  EXPECT_EQ(served({without_drafts, path_of("deepseek_v4_mtp")}), 2u);
}

// What is left over decides how long passes are: 3 GiB were refused once, and 4 GiB held no
// adapter.
TEST(Plan, AServerRatherHasShortPassesThanNoAdapter) {
  PlanOptions options;
  options.model = "qwen3-0.6b";
  options.dtype = "bf16";
  options.json = true;
  options.memory = "3100MiB";
  const boost::json::object small = plan(options, "serve");
  EXPECT_GE(small.at("adapters_of_rank_8").as_int64(), 1);
  options.memory = "4GiB";
  const boost::json::object middle = plan(options, "serve");
  EXPECT_GE(middle.at("adapters_of_rank_32").as_int64(), 1);
  options.memory = "16GiB";
  const boost::json::object large = plan(options, "serve");
  EXPECT_LT(middle.at("microbatch_tokens").as_int64(), large.at("microbatch_tokens").as_int64());
  EXPECT_EQ(large.at("microbatch_tokens").as_int64(), 2048);
}

TEST(Plan, RefusesByName) {
  PlanOptions options = options_of_plan("qwen3");
  for (const char* tokens :
       {"4", "4x", "x4", "0x4", "4x0", "-1x4", "4x4x4", "4x 4", "99999999999x1", "4097x4096"}) {
    options.tokens = tokens;
    EXPECT_NE(fault(options).find("--tokens"), std::string::npos) << tokens;
  }
  options.tokens = "1x257";
  EXPECT_NE(fault(options).find("the model's context is 256"), std::string::npos);
  options.tokens = "1x256";
  options.memory = "1GiB";
  options.recompute = "full";
  EXPECT_NE(fault(options).find("--memory and --recompute: give one"), std::string::npos);
}

// One budget of all stages: micro-batches and what is kept are chosen, and what nothing can hold is
// refused with its bytes.
TEST(Plan, ChoosesWhatStagesKeepWithinAMemory) {
  for (const char* schedule : {"1f1b", "gpipe", "circular"}) {
    PlanOptions options = options_of_plan("qwen3");
    options.tokens = "8x256";
    options.stages = {.stages = 2, .schedule = schedule};
    options.schedule.microbatches = 2;
    const boost::json::object told = plan(options);
    EXPECT_EQ(told.at("microbatches"), 2);
    EXPECT_EQ(told.at("microbatch_tokens"), 4 * 256);
    ASSERT_EQ(told.at("stages").as_array().size(), 2U);
    int64_t sum = 0;
    for (const auto& [name, bytes] : told.at("bytes").as_object()) sum += bytes.as_int64();
    const int64_t most = told.at("planned_bytes").as_int64();
    EXPECT_EQ(sum, most);
    for (const int64_t bytes : {most, most - most / 8}) {
      options.memory = std::to_string(bytes);
      const boost::json::object less = plan(options);
      EXPECT_LE(less.at("planned_bytes").as_int64(), bytes);
      EXPECT_GE(less.at("microbatches").as_int64(), 2);
    }
    options.memory = "1MiB";
    EXPECT_NE(fault(options).find("--memory 1MiB: the stages of all ranks take"),
              std::string::npos);
  }
  PlanOptions offloading = options_of_plan("qwen3");
  offloading.stages = {.stages = 2, .schedule = "1f1b"};
  offloading.tokens = "8x256";
  offloading.schedule.microbatches = 2;
  offloading.recompute = "minimal_offloaded";
  offloading.offload = testing::TempDir();
  const int64_t most = plan(offloading).at("file_bytes").as_int64();
  EXPECT_GT(most, 0);
  offloading.schedule.microbatches = 4;  // a half of the tokens each, as many in flight
  EXPECT_LT(plan(offloading).at("file_bytes").as_int64(), most);
  offloading.recompute = "none";
  EXPECT_NE(fault(offloading).find("--offload: the folder of what --memory does not hold"),
            std::string::npos);
  offloading.recompute = "custom:query_proj=offload";
  offloading.stages.recompute_iterations = "on";
  EXPECT_NE(fault(offloading).find("keep or offload decoder_layer_input as well"),
            std::string::npos);
}

// A layer, and logits of its own, beside the head's.
TEST(Plan, CountsMultiTokenPredictionWhereItsLayerIs) {
  const auto engine = make_planning_engine(
      read_plan_spec({.model = path_of("deepseek_v4_mtp"), .mtp = model::UseMtp::kAlways}));
  model::ModelConfig config = engine->config();
  const engine::LayerCosts with = engine::layer_costs(config);
  config.use_mtp = false;
  const engine::LayerCosts without = engine::layer_costs(config);
  EXPECT_EQ(with.layers, without.layers);
  EXPECT_GE(with.head, 2 * without.head + with.layers.back() / 2);
}

// Scores of every entry again, three times, and of attention to them.
TEST(Plan, CountsTheLossOfIndexers) {
  const std::vector<int64_t> lengths = {512};
  for (const char* model : {"deepseek-v4-tiny", "qwen3-0.6b"}) {
    const auto engine = make_planning_engine(read_plan_spec({.model = model}));
    const bool any = engine->model().weights->layers().num_indexers() > 0;
    const double without = engine::step_flops(engine->config(), {.lengths = lengths});
    const double with =
        engine::step_flops(engine->config(), {.lengths = lengths, .indexer_loss = true});
    EXPECT_EQ(with > without, any) << model;
    EXPECT_LT(with, 2 * without) << model;
  }
}

}  // namespace
}  // namespace strata::apps
