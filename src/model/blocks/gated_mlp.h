// SPDX-License-Identifier: Apache-2.0
// down(act(gate(n)) * up(n)), act SiLU or the tanh form of GELU: the gated MLP of a dense layer,
// and of the shared experts of a sparse one. T tokens, D model width, F feed-forward width. Source:
// HF modeling_llama.py, LlamaMLP. Engine thread only.
#pragma once
#include <array>

#include "model/blocks/block.h"
#include "model/pass/pass.h"
#include "ops/clamped_swiglu.h"
#include "ops/gated.h"

namespace strata::model {

struct GatedMlpConfig {
  int64_t width = 0;
  bool bias = false;
  ops::Activation activation = ops::Activation::kSilu;
  bool fused_gate_up = false;  // files and adapters have gate_proj and up_proj as one, gate_up_proj
  friend bool operator==(const GatedMlpConfig&, const GatedMlpConfig&) = default;
};

extern const BlockOps kGatedMlp;

// The pieces, for a block that has such an MLP inside.
struct GatedMlpParts {
  int gate = 0, up = 0, down = 0;  // keys of the block's matrices
  int64_t width = 0;
  ops::Activation activation = ops::Activation::kSilu;
  ops::SwigluForm clamp = {};  // of SiLU's, where its limit is not 0
};

struct GatedMlpSaved {
  TensorView gate;  // [T, F] mlpwi_0
  TensorView up;    // [T, F] mlpwi_1
  std::array<TensorView, 3> lora_h;
};

// y = scale * act(gate) * up, clamped where there is a limit; scales [T] or empty.
void gated_mlp_activate(Pass& pass, const GatedMlpParts& mlp, TensorView gate, TensorView up,
                        TensorView scales, TensorView y);
// `width` is that of all tensor ranks together, over which d_scales are sums.
void gated_mlp_activate_backward(Pass& pass, const GatedMlpParts& mlp, int64_t width,
                                 TensorView gate, TensorView up, TensorView scales, TensorView d_y,
                                 TensorView d_gate, TensorView d_up, TensorView d_scales);

void gated_mlp_allocate_saved(Pass& pass, const BlockContext& context, const GatedMlpParts& mlp,
                              GatedMlpSaved& saved);

// Fills saved from n [T, D]; writes out [T, D] = add + down(...) unless out is empty. `scales` [T]
// f32 multiplies each row's result, or is empty.
void gated_mlp_forward(Pass& pass, const BlockContext& context, const GatedMlpParts& mlp,
                       const GatedMlpSaved& saved, TensorView n, BlockOutput output,
                       TensorView scales = {});

// d_out [T, D] of the compute type; writes d_n [T, D] f32, and d_scales [T] f32 where there are
// scales.
void gated_mlp_backward(Pass& pass, const BlockContext& context, const GatedMlpParts& mlp,
                        const GatedMlpSaved& saved, TensorView n, TensorView d_out, TensorView d_n,
                        TensorView scales = {}, TensorView d_scales = {});

}  // namespace strata::model
