// SPDX-License-Identifier: Apache-2.0
// A residual of several streams: a connector that hands one residual from stream to stream gives
// the bits of the model that has only that one, forward, backward, sampled and as planned; and what
// streams declare outside the layers is initialised, trained and kept in f32.
#include "model/pass/streams.h"

#include <gtest/gtest.h>

#include "engine/plan/memory_plan.h"
#include "model/connectors/pre_norm_add.h"
#include "model/residual.h"
#include "model/weights/init.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

using model::BlockContext;
using model::Pass;
using model::SublayerContext;
using model::SublayerSaved;

constexpr int64_t kStreams = 3;

TensorView dense_copy(Pass& pass, TensorView x) {
  const TensorView y = pass.take(x.dtype, {x.rows(), x.cols()});
  ops::copy(pass.backend, x, y);
  return y;
}

TensorView stream(TensorView state, int64_t index) {
  const int64_t width = state.cols() / kStreams;
  const int64_t first = index % kStreams * width;
  return state.slice_cols(first, first + width);
}

// Sublayer i of the model reads stream i and leaves the sum in stream i + 1; the others are handed
// on.
struct Relay {
  using Config = model::PreNormAddConfig;
  struct Saved {};

  static void add_params(const Config& c, int64_t hidden_size, model::ParamRows& rows) {
    model::kPreNormAdd.add_params(&c, hidden_size, rows);
  }
  static constexpr bool kSavesOutput = false;
  static void allocate_saved(Pass&, const SublayerContext&, Saved&) {}
  static int64_t place(const BlockContext& outer) { return 2 * outer.layer + outer.sublayer; }

  static ops::RmsNormArgs norm_of(const BlockContext& outer, TensorView x) {
    const auto& c = outer.as<Config>();
    return model::norm_args(x, outer.values(0), c.eps, c.norm_offset);
  }

  static void forward(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                      TensorView state, TensorView out) {
    const Scratch::Mark mark(pass.backend.scratch());
    const int64_t i = place(context.outer);
    const TensorView x = dense_copy(pass, stream(state, i));
    const TensorView n = pass.take(pass.dtype(), {x.rows(), x.cols()});
    ops::rms_norm(pass.backend, norm_of(context.outer, x), n, {});
    if (out.empty()) {
      context.block->forward(pass, context.inner, saved.inner, n, {.add = x, .out = {}});
      return;
    }
    const TensorView sum = pass.take(out.dtype, {x.rows(), x.cols()});
    context.block->forward(pass, context.inner, saved.inner, n, {.add = x, .out = sum});
    for (int64_t s = 0; s < kStreams; ++s) {
      ops::copy(pass.backend, s == (i + 1) % kStreams ? sum : stream(state, s), stream(out, s));
    }
  }

  static void backward(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                       TensorView state, TensorView d) {
    const Scratch::Mark mark(pass.backend.scratch());
    const int64_t i = place(context.outer);
    const TensorView x = dense_copy(pass, stream(state, i));
    const TensorView d_sum = dense_copy(pass, stream(d, i + 1));
    const TensorView n = pass.take(pass.dtype(), {x.rows(), x.cols()});
    ops::rms_norm(pass.backend, norm_of(context.outer, x), n, {});
    const TensorView d_n = pass.take(DType::kF32, {d_sum.rows(), d_sum.cols()});
    context.block->backward(pass, context.inner, saved.inner, n,
                            model::to_compute_dtype(pass, d_sum), d_n);
    ops::rms_norm_backward(pass.backend, norm_of(context.outer, x), {}, d_n, d_sum,
                           pass.base_gradient(context.outer.param(0).index));
    ops::add_into(pass.backend, d_sum, stream(d, i));
    ops::copy(pass.backend, model::zeros(pass, {x.rows(), x.cols()}), stream(d, i + 1));
  }
};
constexpr model::ConnectorOps kRelay = model::connector_ops<Relay>("relay");

// Reads the stream that the last sublayer wrote, times a weight of each column.
struct ReadOne {
  struct Config {
    int64_t index = 0;
    friend bool operator==(const Config&, const Config&) = default;
  };
  static void add_params(const Config&, int64_t, int64_t hidden_size, model::ParamRows& rows) {
    rows.push_back({.key = 0,
                    .suffix = "read_one.weight",
                    .shape = {1, hidden_size},
                    .floor = DType::kF32,
                    .init = 1.0f});
  }
  static void collapse(Pass& pass, const BlockContext& context, TensorView state, TensorView out) {
    ops::copy(pass.backend, stream(state, context.as<Config>().index), out);
    if (pass.backend.is_counting()) return;
    const HostAccess access(pass.backend.allocator());
    for (int64_t column = 0; column < out.cols(); ++column) {
      EXPECT_EQ(context.values(0).f32()[column], 1.0f);
    }
  }
  static void collapse_backward(Pass& pass, const BlockContext& context, TensorView state,
                                TensorView d_out, TensorView d_state) {
    ops::fill_zero(pass.backend, d_state);
    const int64_t index = context.as<Config>().index;
    ops::copy(pass.backend, d_out, stream(d_state, index));
    const TensorView d_weight = pass.base_gradient(context.param(0).index);
    if (d_weight.empty()) return;
    const TensorView x = pass.take(DType::kF32, d_out.shape);
    ops::copy(pass.backend, stream(state, index), x);
    if (pass.backend.is_counting()) return;
    const HostAccess access(pass.backend.allocator());
    for (int64_t t = 0; t < x.rows(); ++t) {
      for (int64_t j = 0; j < x.cols(); ++j) {
        d_weight.f32()[j] += d_out.f32()[t * x.cols() + j] * x.f32()[t * x.cols() + j];
      }
    }
  }
};
constexpr model::StreamsOps kReadOne = model::streams_ops<ReadOne>("read_one");

model::ModelConfig config_of(const std::string& golden, bool streams) {
  auto config = model::load_config(
                    std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + golden + "/model", false)
                    .config;
  if (!streams) return config;
  int64_t count = 0;
  for (model::LayerConfig& layer : config.layers) {
    for (model::Sublayer& sublayer : layer) {
      EXPECT_EQ(sublayer.connector.ops().name, model::kPreNormAdd.name);
      sublayer.connector = model::Connector(
          kRelay, *static_cast<const model::PreNormAddConfig*>(sublayer.connector.config()));
      ++count;
    }
  }
  config.streams = model::Streams(kReadOne, kStreams, ReadOne::Config{.index = count});
  return config;
}

std::unique_ptr<Engine> make(const model::ModelConfig& config, DType dtype,
                             const EngineOptions& options) {
  auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), test_threads(2));
  auto loaded = model::init_model(*backend, config, dtype, /*seed=*/7);
  return std::make_unique<Engine>(std::move(backend), std::move(loaded), options);
}

// Everything that a run gives: scores, gradients of adapters and of the base, samples.
std::map<std::string, std::vector<float>> everything(Engine& engine) {
  std::map<std::string, std::vector<float>> out;
  const api::AdapterSlot slot = engine.create_adapter(tiny_specs(engine, 4), 3);
  stir(engine, slot);
  api::Batch batch;
  batch.sequences = {tiny_sequence(engine, 70, 1, slot),
                     tiny_sequence(engine, 9, 2, api::AdapterSlot::kBase),
                     tiny_sequence(engine, 40, 3, slot)};
  batch.want_hidden_states = batch.want_logits = true;
  api::TensorSink sink;
  const api::BatchResult scored = run_batch(engine, batch, &sink);
  for (size_t i = 0; i < scored.sequences.size(); ++i) {
    out["logprobs " + std::to_string(i)] = scored.sequences[i].logprobs;
  }
  out["logits"] = sink.at("logits").values;
  const int64_t width = engine.config().hidden_size;
  const api::NamedTensor& states = sink.at("hidden_states");
  EXPECT_EQ(states.shape.back(), engine.config().state_width());
  const std::vector<float>& last =
      engine.config().streams ? sink.at("final_hidden").values : states.values;
  out["final_hidden"].assign(last.end() - 119 * width, last.end());
  batch.want_hidden_states = batch.want_logits = false;
  batch.gradients = api::Gradients::kAdapters;
  run_batch(engine, batch);
  out["adapter"] = copy_of(engine.adapter(slot).gradients());
  batch.gradients = api::Gradients::kParameters;
  run_batch(engine, batch);
  train::BaseTrainer& trainer = engine.base_trainer();
  trainer.finish_gradients(engine.backend());
  const auto& table = engine.model().weights->table();
  for (size_t i = 0; i < table.size(); ++i) {
    if (!table[i].buffer) out[table[i].name] = copy_of(trainer.gradient(i));
  }
  api::SampleRequest request;
  request.slot = slot;
  request.prompt = tiny_tokens(21, engine.config().vocab_size, 5);
  request.max_tokens = 12;
  request.prompt_logprobs = true;
  for (const api::SampleResult& sample : engine::sample(engine, {request, request})) {
    out["samples"].insert(out["samples"].end(), sample.tokens.begin(), sample.tokens.end());
    out["sampled"].insert(out["sampled"].end(), sample.logprobs.begin(), sample.logprobs.end());
  }
  return out;
}

class EngineStreams : public testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(EngineStreams, HandedOnGiveTheBitsOfOneStream) {
  const auto& [name, dtype] = GetParam();
  auto plain = make(config_of(name, false), dtype, {});
  const auto wanted = everything(*plain);
  for (const auto& recompute : {model::Recompute::kNone, model::Recompute::kFull}) {
    auto engine = make(config_of(name, true), dtype,
                       {.pass_tokens = 75, .prefill_tokens = 8, .recompute = recompute});
    auto found = everything(*engine);
    const auto weight = found.find("model.read_one.weight");
    ASSERT_NE(weight, found.end());
    EXPECT_GT(*std::max_element(weight->second.begin(), weight->second.end()), 0.0f);
    found.erase(weight);
    EXPECT_EQ(found.size(), wanted.size());
    for (const auto& [key, values] : wanted) EXPECT_EQ(found.at(key), values) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineStreams,
                         testing::Combine(testing::Values("qwen3", "deepseek_moe", "qwen3_5"),
                                          testing::Values(DType::kF32, DType::kBF16)));

// A state of three streams is three times as wide between the sublayers, and planned so.
TEST(EngineStreams, AreBookedAsPlanned) {
  auto engine = make(config_of("qwen3", true), DType::kBF16, {});
  api::Batch batch;
  batch.sequences = {tiny_sequence(*engine, 64, 1, api::AdapterSlot::kBase)};
  batch.gradients = api::Gradients::kParameters;
  run_batch(*engine, batch);
  const PassPlan& plan = engine->last_plan();
  EXPECT_EQ(engine->backend().scratch().high_water(), plan.bytes);
  const int64_t layers = engine->config().num_layers();
  const int64_t width = engine->config().state_width();
  EXPECT_EQ(width, kStreams * engine->config().hidden_size);
  const auto bytes_of = [&](std::string_view tag) {
    const auto use = std::find_if(plan.uses.begin(), plan.uses.end(),
                                  [&](const Scratch::Use& u) { return u.tag == tag; });
    return use == plan.uses.end() ? 0 : use->bytes;
  };
  EXPECT_EQ(bytes_of("decoder_layer_input"), (layers + 1) * 64 * width * 2);
  EXPECT_EQ(bytes_of("out_proj"), layers * 64 * width * 4);
}

// What the streams declare steps with the rest.
TEST(EngineStreams, TheirParametersAreTrained) {
  auto engine = make(config_of("qwen3", true), DType::kBF16, {});
  const auto& table = engine->model().weights->table();
  const auto row = std::find_if(table.begin(), table.end(), [](const model::Parameter& p) {
    return p.name == "model.read_one.weight";
  });
  ASSERT_NE(row, table.end());
  EXPECT_FALSE(row->is_matrix());
  api::Batch batch;
  batch.sequences = {tiny_sequence(*engine, 30, 1, api::AdapterSlot::kBase)};
  batch.gradients = api::Gradients::kParameters;
  run_batch(*engine, batch);
  take_step(*engine, api::AdapterSlot::kBase, {.lr = 1e-4});
  const std::vector<float> values = copy_of(row->values);
  EXPECT_NE(std::count(values.begin(), values.end(), 1.0f), std::ssize(values));
  for (const float value : values) {
    EXPECT_TRUE(value == 1.0f || value != round_to_bf16(value)) << "kept in f32";
  }
}

}  // namespace
}  // namespace strata::engine
