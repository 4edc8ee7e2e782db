// SPDX-License-Identifier: Apache-2.0
// What a pass keeps, and where, changes what it takes and what it does again, and no bit: presets,
// maps of tags by layer, and plans for a number of bytes, which are the best of all maps.
#include "model/pass/recompute.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"
#include "engine/plan/recompute_plan.h"
#include "model/weights/init.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

using model::Recompute;

// Gradients of an adapter and of the base, by one engine with its options changed between runs.
class Runs {
 public:
  explicit Runs(const std::string& model)
      : engine_(tiny_engine({.model = model, .threads = 2, .options = {.pass_tokens = 75}})),
        slot_(engine_->create_adapter(tiny_specs(*engine_, 4), 3)) {
    stir(*engine_, slot_);
    batch_.sequences = {tiny_sequence(*engine_, 70, 1, slot_),
                        tiny_sequence(*engine_, 9, 2, api::AdapterSlot::kBase),
                        tiny_sequence(*engine_, 40, 3, slot_)};
  }

  Engine& engine() { return *engine_; }
  // What a whole batch gives, and that each pass took what was planned.
  std::vector<std::vector<float>> run(const Recompute& recompute) {
    engine_->set_pass_options(75, recompute);
    const auto expect_as_planned = [&] {
      Backend& backend = engine_->backend();
      const PassPlan& plan = engine_->last_plan();
      EXPECT_EQ(backend.scratch().high_water(), plan.bytes);
      const int64_t in_files = backend.has_files() ? backend.file_scratch().high_water() : 0;
      EXPECT_EQ(recompute.offloads_any() ? in_files : 0, plan.file_bytes);
    };
    const int64_t grown = engine_->backend().scratch().grown();  // while the model was loaded
    std::vector<std::vector<float>> out;
    batch_.gradients = api::Gradients::kAdapters;
    for (const auto& sequence : run_batch(*engine_, batch_).sequences)
      out.push_back(sequence.logprobs);
    expect_as_planned();
    EXPECT_EQ(engine_->backend().scratch().grown(), grown);
    out.push_back(copy_of(engine_->adapter(slot_).gradients()));
    engine_->adapter(slot_).drop_gradients();
    batch_.gradients = api::Gradients::kParameters;
    run_batch(*engine_, batch_);
    expect_as_planned();
    if (engine_->backend().has_files()) {
      EXPECT_EQ(engine_->backend().file_scratch().grown(), 0);
    }
    for (auto& [name, values] : take_base_gradients(*engine_)) out.push_back(values);
    return out;
  }
  PlanShape shape() {
    return {.pass_tokens = 64, .modules = tiny_specs(*engine_, 4), .backward = true};
  }
  std::vector<std::string> tags() {
    std::vector<std::string> out;
    for (const auto& row : plan_given_recompute(*engine_, shape(), Recompute::kNone).rows) {
      if (std::find(out.begin(), out.end(), row.tag) == out.end()) out.emplace_back(row.tag);
    }
    return out;
  }

 private:
  std::unique_ptr<Engine> engine_;
  api::AdapterSlot slot_;
  api::Batch batch_;
};

class EngineRecompute : public testing::TestWithParam<std::string> {};

TEST_P(EngineRecompute, ChangesNoBit) {
  Runs runs(GetParam());
  const auto wanted = runs.run(Recompute::kNone);
  EXPECT_EQ(runs.run(Recompute::kFull), wanted);
  for (const model::RecomputePreset& preset : model::recompute_presets()) {
    EXPECT_EQ(runs.run(preset.value()), wanted) << preset.name;
  }
  const std::vector<std::string> tags = runs.tags();
  ASSERT_GE(tags.size(), 6u);
  std::mt19937 random(7);
  for (int map = 0; map < 20; ++map) {
    std::vector<uint64_t> masks(static_cast<size_t>(runs.engine().config().num_layers()));
    const uint64_t all = (uint64_t{1} << tags.size()) - 1;
    for (uint64_t& mask : masks) mask = random() & all;
    std::vector<uint64_t> offloaded(map % 2 == 0 ? 0 : masks.size());
    for (uint64_t& mask : offloaded) mask = random() & all;
    EXPECT_EQ(runs.run(Recompute::keeping(tags, masks, offloaded)), wanted) << "map " << map;
  }
  EXPECT_EQ(runs.run(Recompute::with_offload({}, tags)), wanted) << "everything in files";
}

// What is kept may be overwritten between forward and backward's second forward, which leaves it.
TEST_P(EngineRecompute, MakesNothingAgainThatItKeeps) {
  constexpr int kFill = 0x5a;
  Runs runs(GetParam());
  Engine& engine = runs.engine();
  const auto tokens = tiny_tokens(40, engine.config().vocab_size, 1);
  PassBuilder builder;
  builder.append(tokens, 0, &engine.adapter(api::AdapterSlot{1}));
  const Scratch::Mark mark(engine.backend().scratch());
  model::Pass pass = builder.build(engine.backend(), *engine.model().weights,
                                   engine.workspace().ropes(), engine.cache_layout());
  model::Tape tape;
  tape.recompute = Recompute::keeping(runs.tags());
  const TensorView hidden = pass.take(pass.dtype(), {40, engine.config().hidden_size});
  model::decoder_forward(pass, tape, /*wants_backward=*/true, {}, hidden);
  const std::vector<TensorView> kept = pass.lists.saves.kept;
  ASSERT_GE(std::ssize(kept), 6 * engine.config().num_layers());
  for (const TensorView& view : kept) {
    const HostAccess access(cpu_allocator());
    std::memset(view.data, kFill, static_cast<size_t>(view.num_bytes()));
  }
  for (int64_t layer = 0; layer < engine.config().num_layers(); ++layer) {
    const Scratch::Mark layer_mark(engine.backend().scratch());
    model::recompute_layer(pass, layer, tape.layers[static_cast<size_t>(layer)], tape.pool,
                           tape.recompute);
  }
  for (const TensorView& view : kept) {
    const HostAccess access(cpu_allocator());
    const auto* bytes = static_cast<const unsigned char*>(view.data);
    EXPECT_EQ(std::count(bytes, bytes + view.num_bytes(), kFill), view.num_bytes());
  }
}

// What is offloaded takes no memory, by tag, and its bytes in files.
TEST_P(EngineRecompute, OffloadsOutOfMemory) {
  Runs runs(GetParam());
  const std::vector<std::string> tags = runs.tags();
  const auto plan = [&](const Recompute& recompute) {
    PlanShape shape = runs.shape();
    shape.recompute = recompute;
    return plan_pass(runs.engine(), shape);
  };
  const PassPlan kept = plan(Recompute::keeping(tags)),
                 gone = plan(Recompute::with_offload({}, tags));
  EXPECT_EQ(kept.file_bytes, 0);
  EXPECT_EQ(plan(Recompute::kFull).file_bytes, 0);
  int64_t bytes = 0;
  for (const model::SavedCost& cost : kept.saved) bytes += cost.bytes;
  EXPECT_EQ(gone.file_bytes, bytes);
  EXPECT_EQ(gone.bytes, kept.bytes - bytes);
  for (const std::string& tag : tags) {
    int64_t of_tag = 0, in_files = 0;
    for (const model::SavedCost& cost : kept.saved) of_tag += cost.tag == tag ? cost.bytes : 0;
    for (const Scratch::Use& use : gone.file_uses) in_files += use.tag == tag ? use.bytes : 0;
    EXPECT_EQ(in_files, of_tag) << tag;
    for (const Scratch::Use& use : gone.uses) {
      // The last layer's output is nobody's input, and stays.
      EXPECT_TRUE(use.tag != tag || use.bytes == 0 || tag == model::kLayerInputTag) << tag;
    }
  }
}

// The products that a pass is counted to run are those that the plan says it makes again, for each
// tag that is kept and for maps of them. What is made by others is left out: scores and contexts,
// and the numbers that mix streams.
TEST_P(EngineRecompute, MakesAgainWhatIsPlanned) {
  Runs runs(GetParam());
  Engine& engine = runs.engine();
  PlanShape shape = runs.shape();
  shape.modules.clear();  // low-rank products are not counted
  const std::vector<std::string> others = {"context", "delta_context", "hyper_connection"};
  std::vector<std::string> tags;
  for (const std::string& tag : runs.tags()) {
    if (std::find(others.begin(), others.end(), tag) == others.end()) tags.push_back(tag);
  }
  const auto made = [&](const Recompute& recompute) {
    shape.recompute = recompute;
    return plan_pass(engine, shape).flops;
  };
  const auto planned = [&](const Recompute& recompute) {
    double flops = 0.0;
    for (const RecomputePlan::Row& row : plan_given_recompute(engine, shape, recompute).rows) {
      if (std::find(others.begin(), others.end(), row.tag) != others.end()) continue;
      flops += row.layer_flops * static_cast<double>(row.num_again());
    }
    return flops;
  };
  const double once = made(Recompute::kNone);
  EXPECT_EQ(planned(Recompute::kNone), 0.0);
  EXPECT_GT(planned(Recompute::kFull), 0.0);
  const auto expect_planned = [&](const Recompute& recompute, const std::string& where) {
    EXPECT_EQ(made(recompute) - once, planned(recompute)) << where;
  };
  expect_planned(Recompute::kFull, "full");
  for (const std::string& tag : tags) expect_planned(Recompute::keeping({tag}), tag);
  std::mt19937 random(11);
  for (int map = 0; map < 20; ++map) {
    std::vector<uint64_t> masks(static_cast<size_t>(engine.config().num_layers()));
    for (uint64_t& mask : masks) mask = random() & ((uint64_t{1} << tags.size()) - 1);
    expect_planned(Recompute::keeping(tags, masks), "map " + std::to_string(map));
  }
}

// Each tag that is kept takes its bytes for the whole pass.
TEST_P(EngineRecompute, KeepsWhatItSays) {
  Runs runs(GetParam());
  const PlanShape shape = runs.shape();
  const RecomputePlan none = plan_given_recompute(runs.engine(), shape, Recompute::kNone);
  const RecomputePlan full = plan_given_recompute(runs.engine(), shape, Recompute::kFull);
  EXPECT_EQ(none.flops, 0.0);
  EXPECT_GT(full.flops, 0.0);
  EXPECT_LT(full.bytes, none.bytes);
  double flops = 0.0;
  for (const std::string& tag : runs.tags()) {
    const RecomputePlan one = plan_given_recompute(runs.engine(), shape, Recompute::keeping({tag}));
    EXPECT_LE(one.bytes, none.bytes) << tag;
    EXPECT_GE(one.bytes, full.bytes) << tag;  // where one layer alone has it, it was there before
    flops += full.flops - one.flops;
  }
  EXPECT_NEAR(flops, full.flops, 1e-9 * full.flops) << "the tags are all of it";
  EXPECT_EQ(plan_given_recompute(runs.engine(), shape, Recompute::keeping(runs.tags())).flops, 0.0);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineRecompute,
                         testing::Values("qwen3", "llama_bias_f16", "gemma3", "qwen2",
                                         "deepseek_mla", "deepseek_moe", "qwen3_moe", "qwen3_5",
                                         "qwen3_5_moe", "mistral_window", "deepseek_v4", "gpt_oss",
                                         "gemma2", "lfm2", "gemma4", "gemma4_moe", "gemma4_shared",
                                         "llama4"));

// Maps that keep so many layers of each tag, and offload so many of these: all there are, or, of
// more than can be tried, some that are drawn.
class Maps {
 public:
  Maps(Engine& engine, const PlanShape& shape, const std::vector<std::string>& tags, bool offloads)
      : tags_(tags), layers_(engine.config().num_layers()), numbers_(tags.size()) {
    for (int64_t kept = 0; kept <= layers_; ++kept) {
      for (int64_t files = 0; files <= (offloads ? kept : 0); ++files)
        choices_.push_back({kept, files});
    }
    constexpr double kMost = 20000;
    const bool all = std::pow(choices_.size(), tags_.size()) <= kMost;
    std::mt19937 random(5);
    for (int i = 0; all || i < 2000; ++i) {
      const RecomputePlan plan = plan_given_recompute(engine, shape, map());
      tried_.push_back({plan.bytes, plan.cost()});
      if (all && !next()) break;
      for (size_t& number : numbers_) number = all ? number : random() % choices_.size();
    }
  }
  // The least cost of those within so many bytes, and the least bytes of all.
  [[nodiscard]] double best(int64_t bytes) const {
    double best = 1e300;
    for (const Tried& tried : tried_) {
      if (tried.bytes <= bytes) best = std::min(best, tried.cost);
    }
    return best;
  }
  [[nodiscard]] int64_t least() const {
    return std::min_element(tried_.begin(), tried_.end(),
                            [](const Tried& a, const Tried& b) { return a.bytes < b.bytes; })
        ->bytes;
  }

 private:
  struct Choice {
    int64_t kept = 0;
    int64_t files = 0;
  };
  struct Tried {
    int64_t bytes = 0;
    double cost = 0.0;
  };
  [[nodiscard]] Recompute map() const {
    std::vector<uint64_t> masks(static_cast<size_t>(layers_)), files = masks;
    for (size_t tag = 0; tag < tags_.size(); ++tag) {
      const Choice& choice = choices_[numbers_[tag]];
      for (int64_t layer = 0; layer < choice.kept; ++layer) {
        masks[static_cast<size_t>(layer)] |= uint64_t{1} << tag;
        if (layer < choice.files) files[static_cast<size_t>(layer)] |= uint64_t{1} << tag;
      }
    }
    return Recompute::keeping(tags_, masks, files);
  }
  bool next() {
    for (size_t& number : numbers_) {
      if (++number < choices_.size()) return true;
      number = 0;
    }
    return false;
  }

  std::vector<std::string> tags_;
  int64_t layers_;
  std::vector<size_t> numbers_;
  std::vector<Choice> choices_;
  std::vector<Tried> tried_;
};

// No other map that fits costs less.
TEST(RecomputePlan, IsTheBestThatFits) {
  Runs runs("qwen3");
  Engine& engine = runs.engine();
  PlanShape shape = runs.shape();
  shape.modules.clear();  // fewer tags, so that all maps can be tried
  std::vector<std::string> tags;
  for (const std::string& tag : runs.tags()) {
    if (tag != "lora_h" && tag != model::kLayerInputTag) tags.push_back(tag);
  }
  const Maps maps(engine, shape, tags, /*offloads=*/false);
  const int64_t least = plan_given_recompute(engine, shape, Recompute::kFull).bytes;
  const int64_t most = plan_given_recompute(engine, shape, Recompute::kNone).bytes;
  RecomputePlanner planner(engine, shape);
  EXPECT_EQ(planner.least(), least);
  EXPECT_EQ(planner.most(), most);
  for (int i = 0; i <= 40; ++i) {
    const int64_t bytes = least + (most - least) * i / 40;
    const RecomputePlan plan = planner.plan(bytes);
    EXPECT_LE(plan.bytes, bytes);
    EXPECT_EQ(plan.file_bytes, 0);
    EXPECT_EQ(plan.cost(), maps.best(bytes)) << bytes;
  }
}

// Likewise with a third place: of one layer every map is tried, of several some.
TEST(RecomputePlan, IsTheBestThatFitsWithFiles) {
  for (const int layers : {1, 3}) {
    const std::string dir = std::string(STRATA_SOURCE_DIR) + "/tests/golden/qwen3/model";
    model::ModelConfig config = model::load_config(dir, false).config;
    config.layers.resize(static_cast<size_t>(layers), config.layers[0]);
    auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), /*threads=*/2);
    auto model = model::init_model(*backend, config, DType::kBF16, /*seed=*/1);
    Engine engine(std::move(backend), std::move(model), {});
    const PlanShape shape = {.pass_tokens = 64, .backward = true};
    std::vector<std::string> tags;
    for (const auto& row : plan_given_recompute(engine, shape, Recompute::kNone).rows) {
      tags.emplace_back(row.tag);
    }
    const Maps maps(engine, shape, tags, /*offloads=*/true);
    RecomputePlanner planner(engine, shape, /*offloads=*/true);
    EXPECT_EQ(planner.least(),
              plan_given_recompute(engine, shape, Recompute::with_offload({}, tags)).bytes);
    if (layers == 1) {
      EXPECT_EQ(planner.least(), maps.least());
    }
    bool any_files = false;
    for (int i = 0; i <= 40; ++i) {
      const int64_t bytes = planner.least() + (planner.most() - planner.least()) * i / 40;
      const RecomputePlan plan = planner.plan(bytes);
      EXPECT_LE(plan.bytes, bytes);
      any_files = any_files || plan.file_bytes > 0;
      if (layers == 1) {
        EXPECT_EQ(plan.cost(), maps.best(bytes)) << bytes;
      } else {
        EXPECT_LE(plan.cost(), maps.best(bytes)) << bytes;
      }
    }
    EXPECT_TRUE(any_files);
  }
}

}  // namespace
}  // namespace strata::engine
