// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/groups.h"

#include <algorithm>

#include "base/clock.h"
#include "model/blocks/experts/moe.h"
#include "ops/elementwise.h"
#include "ops/gemm_groups.h"

namespace strata::apps {
namespace {

// bf16 or f32 values in (-1, 1), never zero: what they are does not matter, that they are finite
// and normal does.
void fill(Backend& backend, TensorView view) {
  std::vector<float> values(static_cast<size_t>(view.shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        0.03125f * static_cast<float>(1 + (static_cast<int64_t>(i) * 2654435761LL >> 9) % 31);
  }
  ops::from_host(backend, values, view);
}

const model::MoeConfig* moe_of(const model::ModelConfig& c, int64_t layer) {
  return c.find_block<model::MoeConfig>(layer, model::kMoe);
}

const model::BlockContext& experts(engine::Engine& engine, int64_t layer) {
  const auto sublayers = engine.model().weights->layer(layer);
  return std::find_if(sublayers.begin(), sublayers.end(),
                      [](const auto& s) { return s.block == &model::kMoe; })
      ->inner;
}

class Groups {
 public:
  Groups(engine::Engine& engine, int64_t tokens_per_expert) : backend_(engine.backend()) {
    const model::ModelConfig& c = engine.config();
    int64_t layer = 0;
    while (moe_of(c, layer) == nullptr) ++layer;
    const model::MoeConfig& moe = *moe_of(c, layer);
    for (int64_t e = 0; e < moe.num_experts; ++e) {
      const int64_t begin = e * tokens_per_expert;
      size_t p = 0;
      for (const model::MoeKey key : {model::kMoeGate, model::kMoeUp, model::kMoeDown}) {
        groups_[p++].push_back(
            {.begin = begin,
             .end = begin + tokens_per_expert,
             .w = model::expert_panel(experts(engine, layer).param(key).panel, e)});
      }
    }
    const int64_t rows = moe.num_experts * tokens_per_expert;
    const DType dtype = engine.model().weights->compute_dtype();
    Allocator& allocator = backend_.allocator();
    wide_ = Tensor(allocator, dtype, {rows, c.hidden_size});
    narrow_ = Tensor(allocator, dtype, {rows, moe.expert_width});
    other_ = Tensor(allocator, dtype, {rows, moe.expert_width});
    sum_ = Tensor(allocator, DType::kF32, {rows, c.hidden_size});
    fill(backend_, wide_);
    fill(backend_, narrow_);
    flops_ = 3.0 * 2.0 * static_cast<double>(rows * c.hidden_size * moe.expert_width);
  }

  [[nodiscard]] double flops() const { return flops_; }

  void forward() {
    ops::gemm_groups(backend_, {.x = wide_, .groups = groups_[0]}, other_);
    ops::gemm_groups(backend_, {.x = wide_, .groups = groups_[1]}, other_);
    ops::gemm_groups(backend_, {.x = narrow_, .groups = groups_[2]}, sum_);
  }

  void input_gradient() {
    ops::gemm_groups_dx(backend_, {.x = wide_, .groups = groups_[2]}, other_);
    ops::gemm_groups_dx(backend_, {.x = narrow_, .groups = groups_[0]}, sum_);
    ops::gemm_groups_dx(backend_, {.x = narrow_, .groups = groups_[1]}, sum_, true);
  }

 private:
  Backend& backend_;
  std::vector<ops::GemmGroup> groups_[3];
  Tensor wide_, narrow_, other_, sum_;
  double flops_ = 0.0;
};

template <typename Body>
double share_of_peak(ops::LimitProbe& probe, DType dtype, int repeat, double flops, Body body) {
  std::vector<double> shares;
  body();  // touches memory
  for (int i = 0; i < repeat; ++i) {
    const double before = probe.matrix_flops(dtype);
    const double start = now_seconds();
    body();
    const double seconds = now_seconds() - start;
    shares.push_back(flops / seconds / ((before + probe.matrix_flops(dtype)) / 2.0));
  }
  std::sort(shares.begin(), shares.end());
  return shares[shares.size() / 2];
}

}  // namespace

GroupShares measure_groups(engine::Engine& engine, ops::LimitProbe& probe,
                           int64_t tokens_per_expert, int repeat) {
  Groups groups(engine, tokens_per_expert);
  const DType dtype = engine.model().weights->compute_dtype();
  GroupShares out = {.tokens_per_expert = tokens_per_expert};
  out.forward = share_of_peak(probe, dtype, repeat, groups.flops(), [&] { groups.forward(); });
  out.input_gradient =
      share_of_peak(probe, dtype, repeat, groups.flops(), [&] { groups.input_gradient(); });
  return out;
}

}  // namespace strata::apps
