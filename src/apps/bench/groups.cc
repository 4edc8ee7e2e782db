// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/groups.h"

#include <algorithm>
#include <utility>

#include "apps/bench/figures.h"
#include "base/clock.h"
#include "model/blocks/experts/moe.h"
#include "ops/elementwise.h"
#include "ops/gemm_groups.h"
#include "ops/router.h"

namespace strata::apps {
namespace {

// bf16 or f32 values in (-1, 1), never zero: what they are does not matter, that they are finite
// and normal does.
void fill_with_finite_values(Backend& backend, TensorView view) {
  std::vector<float> values(static_cast<size_t>(view.shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        0.03125f * static_cast<float>(1 + (static_cast<int64_t>(i) * 2654435761LL >> 9) % 31);
  }
  ops::from_host(backend, values, view);
}

const model::MoeConfig* moe_of(const model::ModelConfig& c, int64_t layer) {
  return c.find_block_config<model::MoeConfig>(layer, model::kMoe);
}

int64_t first_moe_layer(const model::ModelConfig& c) {
  int64_t layer = 0;
  while (moe_of(c, layer) == nullptr) ++layer;
  return layer;
}

const model::BlockContext& moe_context(engine::Engine& engine, int64_t layer) {
  const auto sublayers = engine.model().weights->layer(layer);
  return std::find_if(sublayers.begin(), sublayers.end(),
                      [](const auto& s) { return s.block == &model::kMoe; })
      ->inner;
}

// The panels of all experts, by the first one's.
ops::PanelStack panel_stack(const PanelView& first) {
  const PanelView second = model::expert_panel(first, 1);
  return {first, static_cast<char*>(second.data) - static_cast<char*>(first.data)};
}

class GroupedProducts {
 public:
  GroupedProducts(engine::Engine& engine, int64_t tokens_per_expert) : backend_(engine.backend()) {
    const model::ModelConfig& c = engine.config();
    const int64_t layer = first_moe_layer(c);
    const model::MoeConfig& moe = *moe_of(c, layer);
    use_weights(moe_context(engine, layer));
    const int64_t rows = moe.num_experts * tokens_per_expert;
    const DType dtype = engine.model().weights->compute_dtype();
    allocate_operands(dtype, rows, c.hidden_size, moe.expert_width);
    fill_with_finite_values(backend_, wide_);
    fill_with_finite_values(backend_, narrow_);
    route_evenly(moe.num_experts, tokens_per_expert);
    flops_ = 3.0 * 2.0 * static_cast<double>(rows * c.hidden_size * moe.expert_width);
  }

  [[nodiscard]] double flops() const { return flops_; }

  void forward() {
    ops::gemm_groups(backend_, {.x = wide_, .w = weights_[0], .rows = rows_}, other_);
    ops::gemm_groups(backend_, {.x = wide_, .w = weights_[1], .rows = rows_}, other_);
    ops::gemm_groups(backend_, {.x = narrow_, .w = weights_[2], .rows = rows_}, sum_);
  }

  void input_gradient() {
    ops::gemm_groups_dx(backend_, {.x = wide_, .w = weights_[2], .rows = rows_}, other_);
    ops::gemm_groups_dx(backend_, {.x = narrow_, .w = weights_[0], .rows = rows_}, sum_);
    ops::gemm_groups_dx(backend_, {.x = narrow_, .w = weights_[1], .rows = rows_}, sum_, true);
  }

 private:
  struct RouteLists {
    IndexView<int32_t> expert_ids, token_of_row, row_of_slot;
  };

  void use_weights(const model::BlockContext& moe) {
    weights_[0] = panel_stack(moe.param(model::kMoeGate).panel);
    weights_[1] = panel_stack(moe.param(model::kMoeUp).panel);
    weights_[2] = panel_stack(moe.param(model::kMoeDown).panel);
  }

  void allocate_operands(DType dtype, int64_t rows, int64_t hidden_size, int64_t expert_width) {
    Allocator& allocator = backend_.allocator();
    wide_ = Tensor(allocator, dtype, {rows, hidden_size});
    narrow_ = Tensor(allocator, dtype, {rows, expert_width});
    other_ = Tensor(allocator, dtype, {rows, expert_width});
    sum_ = Tensor(allocator, DType::kF32, {rows, hidden_size});
  }

  // And those of rows_, all in numbers_.
  RouteLists allocate_index_lists(int64_t num_experts, int64_t rows) {
    numbers_ = Memory(backend_.allocator(), (4 * rows + num_experts) * 8);
    auto* next = static_cast<char*>(numbers_.data());
    const auto take = [&]<typename T>(IndexView<T>& view, int64_t count) {
      view = {next, count};
      next += count * 8;
    };
    RouteLists lists;
    take(rows_.group_ends, num_experts);
    take(rows_.part_ends, num_experts);
    take(rows_.part_sequences, num_experts);
    take(lists.expert_ids, rows);
    take(lists.token_of_row, rows);
    take(lists.row_of_slot, rows);
    return lists;
  }

  // Each expert as often, in order.
  void choose_experts_evenly(int64_t num_experts, int64_t tokens_per_expert,
                             IndexView<int32_t> expert_ids) {
    std::vector<float> table;
    std::vector<int32_t> tokens;
    for (int64_t e = 0; e < num_experts; ++e) {
      table.push_back(static_cast<float>(e));
      tokens.insert(tokens.end(), static_cast<size_t>(tokens_per_expert), static_cast<int32_t>(e));
    }
    const Tensor choices(backend_.allocator(), DType::kF32, {num_experts, 1});
    ops::from_host(backend_, table, choices);
    ops::look_up_experts(backend_, choices, tokens, expert_ids);
  }

  // Each token goes to one expert, each expert has as many.
  void route_evenly(int64_t num_experts, int64_t tokens_per_expert) {
    const int64_t rows = num_experts * tokens_per_expert;
    const RouteLists lists = allocate_index_lists(num_experts, rows);
    choose_experts_evenly(num_experts, tokens_per_expert, lists.expert_ids);
    const Tensor weights(backend_.allocator(), DType::kF32, {rows});
    const Tensor row_weights(backend_.allocator(), DType::kF32, {rows});
    ops::sort_routes(backend_, /*top_k=*/1, lists.expert_ids, weights,
                     {lists.token_of_row, lists.row_of_slot, row_weights, rows_.group_ends});
    rows_.num_rows = rows;
    rows_.sequence_ends = {&rows_.num_rows, 1};
    ops::split_groups_by_sequence(backend_, lists.token_of_row, rows_);
  }

  Backend& backend_;
  ops::PanelStack weights_[3];
  ops::GroupedRows rows_;
  Memory numbers_;
  Tensor wide_, narrow_, other_, sum_;
  double flops_ = 0.0;
};

template <typename Body>
double measure_share_of_peak(ops::LimitProbe& probe, DType dtype, int repeat, double flops,
                             Body body) {
  std::vector<double> shares;
  body();  // touches memory
  for (int i = 0; i < repeat; ++i) {
    const double before = probe.measure_matrix_flops(dtype);
    const double start = now_seconds();
    body();
    const double seconds = now_seconds() - start;
    shares.push_back(flops / seconds / ((before + probe.measure_matrix_flops(dtype)) / 2.0));
  }
  return median(std::move(shares));
}

}  // namespace

GroupShares measure_grouped_products(engine::Engine& engine, ops::LimitProbe& probe,
                                     int64_t tokens_per_expert, int repeat) {
  GroupedProducts products(engine, tokens_per_expert);
  const DType dtype = engine.model().weights->compute_dtype();
  GroupShares out = {.tokens_per_expert = tokens_per_expert};
  out.forward =
      measure_share_of_peak(probe, dtype, repeat, products.flops(), [&] { products.forward(); });
  out.input_gradient = measure_share_of_peak(probe, dtype, repeat, products.flops(),
                                             [&] { products.input_gradient(); });
  return out;
}

}  // namespace strata::apps
