// SPDX-License-Identifier: Apache-2.0
#include "model/pass/shared_values.h"

#include <algorithm>

#include "model/blocks/kv_segments.h"
#include "model/pass/pass.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

int64_t kv_width(const ModelConfig& config) {
  int64_t width = 0;
  for (const SharedKvSpec& kv : config.shared_kv) width += 2 * kv.num_kv_heads * kv.head_dim;
  return width;
}

int64_t inputs_width(const ModelConfig& config) {
  return config.per_layer_inputs ? config.num_layers() * config.per_layer_inputs->width : 0;
}

// What is behind the state, as one row; empty where there is nothing.
TensorView behind_state(TensorView border, int64_t state_width) {
  const int64_t first = border.rows() * state_width;
  const int64_t count = border.shape.num_elements() - first;
  return count == 0 ? TensorView() : border.reshape({first + count}).part(first, {count});
}

// Takes tensors off the front of a row of numbers.
class Parts {
 public:
  explicit Parts(TensorView row) : row_(row) {}
  TensorView take(const Shape& shape) {
    const TensorView part = row_.part(at_, shape);
    at_ += shape.num_elements();
    return part;
  }

 private:
  TensorView row_;
  int64_t at_ = 0;
};

}  // namespace

const SharedKv& SharedValues::kv_of(int64_t layer) const {
  const auto found =
      std::find_if(kv.begin(), kv.end(), [&](const SharedKv& each) { return each.layer == layer; });
  CHECK(found != kv.end(), layer);
  return *found;
}

int64_t border_width(const ModelConfig& config) {
  return config.state_width() + kv_width(config) + inputs_width(config);
}

int64_t border_gradient_width(const ModelConfig& config, bool trains_before_layers) {
  return config.state_width() + kv_width(config) +
         (trains_before_layers ? inputs_width(config) : 0);
}

bool trains_before_layers(const Pass& pass) {
  if (pass.base_gradients != nullptr) return true;
  const std::span<const AdapterSegment> runs = pass.rows.runs();
  return std::any_of(runs.begin(), runs.end(), [&](const AdapterSegment& run) {
    return pass.trains(run) && run.adapter->has_modules_before_layers();
  });
}

TensorView state_of_border(TensorView border, int64_t width) {
  if (border.empty() || border.cols() == width) return border;
  return border.reshape({border.shape.num_elements()}).part(0, {border.rows(), width});
}

void bind_shared_values(Pass& pass, TensorView border) {
  const ModelConfig& config = pass.weights.config();
  SharedValues& shared = pass.lists.shared;
  shared.kv.clear();
  shared.per_layer_inputs = shared.d_per_layer_inputs = {};
  const int64_t tokens = pass.num_tokens();
  const int64_t width = border_width(config) - config.state_width();
  if (width == 0) return;
  const bool begins = pass.weights.begins();
  const TensorView row = begins ? pass.take(pass.dtype(), {tokens * width})
                                : behind_state(border, config.state_width());
  Parts parts(row);
  for (const SharedKvSpec& spec : config.shared_kv) {
    const Shape shape = {tokens, spec.num_kv_heads, spec.head_dim};
    shared.kv.push_back({.layer = spec.layer,
                         .sublayer = spec.sublayer,
                         .k = parts.take(shape),
                         .v = parts.take(shape)});
  }
  if (config.per_layer_inputs) shared.per_layer_inputs = parts.take({tokens, inputs_width(config)});
  // What other stages make is not there yet, and goes on as zeros.
  if (begins && !pass.weights.ends()) ops::fill_zero(pass.backend, row);
  for (const SharedKv& kv : shared.kv) {
    if (kv.layer >= pass.weights.part().first) continue;
    BlockContext of_layer;
    of_layer.layer = kv.layer;
    of_layer.sublayer = kv.sublayer;
    store_kv(pass, of_layer, kv.k, kv.v);
  }
}

void copy_shared_values(const Pass& pass, TensorView border) {
  const SharedValues& shared = pass.lists.shared;
  if (shared.kv.empty() && shared.per_layer_inputs.empty()) return;
  const int64_t tokens = pass.num_tokens();
  Parts parts(behind_state(border, pass.weights.config().state_width()));
  const auto copy = [&](TensorView x) {
    const Shape flat = {tokens, x.shape.num_elements() / tokens};
    ops::copy(pass.backend, x.reshape(flat), parts.take(flat));
  };
  for (const SharedKv& kv : shared.kv) {
    copy(kv.k);
    copy(kv.v);
  }
  if (!shared.per_layer_inputs.empty()) copy(shared.per_layer_inputs);
}

void bind_shared_gradients(Pass& pass, TensorView border) {
  const ModelConfig& config = pass.weights.config();
  SharedValues& shared = pass.lists.shared;
  const TensorView row = behind_state(border, config.state_width());
  if (row.empty()) return;
  if (pass.weights.ends()) ops::fill_zero(pass.backend, row);
  Parts parts(row);
  for (SharedKv& kv : shared.kv) {
    kv.d_k = parts.take(kv.k.shape);
    kv.d_v = parts.take(kv.v.shape);
  }
  if (config.per_layer_inputs && trains_before_layers(pass)) {
    shared.d_per_layer_inputs = parts.take({pass.num_tokens(), inputs_width(config)});
  }
}

}  // namespace strata::model
