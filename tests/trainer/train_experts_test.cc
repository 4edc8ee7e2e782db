// SPDX-License-Identifier: Apache-2.0
// strata train of a model with experts: the adapter beside the state is what was trained, bit by
// bit, though its file holds gate and up of all experts as one tensor.
#include <cstring>

#include "checkpoint/state.h"
#include "model/adapter/io.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

TEST_F(TrainTest, AnAdapterOfExpertsIsReadBackAsItWasTrained) {
  for (const char* expert_rank : {"divided", "full"}) {
    SCOPED_TRACE(expert_rank);
    TrainOptions o = options(expert_rank);
    o.model = make_v4_model();
    o.steps = 3;
    o.expert_rank = expert_rank;
    ASSERT_EQ(run_train(o), 0);
    const PeftAdapter file(o.out);
    EXPECT_NE(
        file.file().find("base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight"),
        nullptr);

    CpuBackend backend(choose_cpu_path(), 1);
    const model::LoadedModel base = model::load_model(backend, o.model, {});
    model::LoraAdapter trained(
        backend, *base.weights,
        model::make_adapter_specs(base.config, {"all-linear"}, o.rank, o.alpha,
                                  model::parse_expert_rank(expert_rank)));
    TrainerState(o.out + "/trainer")
        .read("values", {trained.num_parameters()}, trained.parameters().f32());
    const auto read = model::load_adapter(backend, base, o.out);
    ASSERT_EQ(read->modules().size(), trained.modules().size());
    int64_t differs_from_zero = 0;
    for (const model::LoraModule& module : trained.modules()) {
      SCOPED_TRACE(module.path);
      const model::LoraModule* same = read->find_module(module.spec.layer, module.spec.target);
      ASSERT_NE(same, nullptr);
      EXPECT_EQ(same->spec.scale, module.spec.scale);
      for (const auto& [is, was] : {std::pair(same->a, module.a), std::pair(same->b, module.b)}) {
        ASSERT_EQ(is.shape, was.shape);
        EXPECT_EQ(std::memcmp(is.data, was.data, static_cast<size_t>(was.num_bytes())), 0);
      }
      differs_from_zero += module.num_experts > 0 && module.b.f32()[0] != 0 ? 1 : 0;
    }
    EXPECT_GT(differs_from_zero, 0);
  }
}

// PEFT's own file of experts and one with a pair of tensors for each, here with rslora: they train
// on, and what is written is read again.
TEST_F(TrainTest, AdaptersThatPeftWroteTrainOn) {
  namespace fs = std::filesystem;
  const std::string golden = std::string(STRATA_SOURCE_DIR) + "/tests/golden/";
  const auto copy_with = [](const std::string& from, const std::string& to, const std::string& was,
                            const std::string& is) {
    std::string text = content(from);
    ASSERT_NE(text.find(was), std::string::npos) << from;
    text.replace(text.find(was), was.size(), is);
    std::ofstream(to) << text;
  };
  fs::copy(root_ + "/config", root_ + "/moe-config");
  copy_with(golden + "qwen3_moe/model/config.json", root_ + "/moe-config/config.json",
            R"("vocab_size": 101)", R"("vocab_size": 4096)");
  const std::string base_dir = root_ + "/moe";
  ASSERT_EQ(run_init({.config = root_ + "/moe-config", .out = base_dir, .seed = 1, .threads = 2}),
            0);
  CpuBackend backend(choose_cpu_path(), 1);
  const model::LoadedModel base = model::load_model(backend, base_dir, {});
  for (const char* form : {"peft_form/qwen3_moe/peft", "qwen3_moe/a"}) {
    SCOPED_TRACE(form);
    const std::string adapter = root_ + "/adapter-" + fs::path(form).filename().string();
    fs::copy(golden + form, adapter);
    copy_with(golden + form + "/adapter_config.json", adapter + "/adapter_config.json",
              R"("use_rslora": false)", R"("use_rslora": true)");
    TrainOptions o = options("from-" + fs::path(form).filename().string());
    o.model = base_dir;
    o.adapter = adapter;
    o.rank = TrainOptions().rank;
    o.steps = 2;
    ASSERT_EQ(run_train(o), 0);
    const auto was = model::load_adapter(backend, base, adapter);
    const auto is = model::load_adapter(backend, base, o.out);
    ASSERT_EQ(is->modules().size(), was->modules().size());
    for (const model::LoraModule& module : was->modules()) {
      const model::LoraModule* same = is->find_module(module.spec.layer, module.spec.target);
      ASSERT_NE(same, nullptr) << module.path;
      EXPECT_DOUBLE_EQ(same->spec.scale, module.spec.scale) << module.path;
      EXPECT_EQ(same->b.shape, module.b.shape) << module.path;
    }
  }
}

// Told before the run begins: PEFT's form has one rank for gate and up of a layer's experts.
TEST_F(TrainTest, AnAdapterThatCouldNotBeWrittenIsRefused) {
  const std::string base_dir = make_v4_model();
  CpuBackend backend(choose_cpu_path(), 1);
  const model::LoadedModel base = model::load_model(backend, base_dir, {});
  std::vector<model::LoraModuleSpec> specs =
      model::make_adapter_specs(base.config, {"gate_proj", "up_proj"}, 8, 8.0);
  for (model::LoraModuleSpec& spec : specs) {
    const auto& target =
        base.weights->layers().targets(spec.layer)[static_cast<size_t>(spec.target)];
    if (target.num_experts > 0 && target.name() == "up_proj") spec.rank = 1;
  }
  model::LoraAdapter adapter(backend, *base.weights, specs);
  adapter.initialise(1);
  model::save_adapter(adapter, root_ + "/two-ranks", "");
  TrainOptions o = options("refused");
  o.model = base_dir;
  o.adapter = root_ + "/two-ranks";
  o.rank = TrainOptions().rank;
  EXPECT_NE(fault(o).find("PEFT's form has both in one tensor of one scaling"), std::string::npos)
      << fault(o);
}

}  // namespace
}  // namespace strata::apps
