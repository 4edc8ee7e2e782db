// SPDX-License-Identifier: Apache-2.0
// strata train of a model with experts: the adapter beside the state is what was trained, bit by
// bit, though its file holds gate and up of all experts as one tensor.
#include <cstring>

#include "checkpoint/state.h"
#include "model/adapter/io.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/apps/train_fixture.h"

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

}  // namespace
}  // namespace strata::apps
