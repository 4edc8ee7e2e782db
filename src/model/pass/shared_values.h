// SPDX-License-Identifier: Apache-2.0
// SharedValues: what one place of a pass makes and layers behind it read besides the state, with
// its gradient, to which they add: keys and values of a layer, for layers that have none of their
// own, and inputs that each layer has (model/per_layer_inputs.h). They last as long as the pass, so
// that recomputing a layer makes the same bits again. Over a border of stages all of them go with
// the state, whatever the next stage reads: a border is the state [T, n D] and behind it each of
// these, dense. T tokens, M key/value heads, H head width, L layers, P width of a layer's input.
// Engine thread only.
#pragma once
#include <cstdint>
#include <vector>

#include "tensor/view.h"

namespace strata::model {

struct ModelConfig;
struct Pass;

struct SharedKv {
  int64_t layer = 0;  // that makes them
  int sublayer = 0;
  TensorView k, v;  // [T, M, H] of the compute type, as attention reads them
  // The same in f32, in a backward: sums over the layers that read them.
  TensorView d_k = {}, d_v = {};
};

struct SharedValues {
  std::vector<SharedKv> kv;
  TensorView per_layer_inputs;  // [T, L P] of the compute type, those of a token's layers in turn
  // The same in f32, in a backward that has a use for it: each layer writes its own columns.
  TensorView d_per_layer_inputs;

  [[nodiscard]] const SharedKv& kv_of(int64_t layer) const;
};

// Numbers of a token that cross a border, the state's and those of shared values; and of their
// gradient, which leaves out that of the layers' inputs where nothing before the layers trains.
int64_t border_width(const ModelConfig& config);
int64_t border_gradient_width(const ModelConfig& config, bool trains_before_layers);
bool trains_before_layers(const Pass& pass);

// The state in a border, [T, width].
TensorView state_of_border(TensorView border, int64_t width);

// Before a forward: the pass's shared values become those of the border that its stage reads or,
// where the model begins, memory of the scratch. Keys and values of other stages go to the pages.
void bind_shared_values(Pass& pass, TensorView border);
// Behind it, to the border that the next stage reads.
void copy_shared_values(const Pass& pass, TensorView border);
// Before a backward: their gradients become those of the border, zeros where the model ends.
void bind_shared_gradients(Pass& pass, TensorView border);

}  // namespace strata::model
