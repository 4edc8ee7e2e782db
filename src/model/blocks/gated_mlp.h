// down(silu(gate(n)) * up(n)): the gated MLP of a dense layer, and of the shared experts of a
// sparse one. T tokens, D model width, F feed-forward width. Source: HF modeling_llama.py,
// LlamaMLP. Engine thread only.
#pragma once
#include <array>

#include "model/block.h"
#include "model/pass.h"

namespace strata::model {

struct GatedMlpConfig {
  int64_t width = 0;
  bool bias = false;
  friend bool operator==(const GatedMlpConfig&, const GatedMlpConfig&) = default;
};

extern const BlockOps kGatedMlp;

// The pieces, for a block that has such an MLP inside.
struct GatedMlpKeys {
  int gate, up, down;  // of the block's matrices
};

struct GatedMlpSaved {
  TensorView gate;  // [T, F] mlpwi_0
  TensorView up;    // [T, F] mlpwi_1
  std::array<TensorView, 3> lora_h;
};

void gated_mlp_save(Pass& pass, const BlockContext& context, const GatedMlpKeys& keys,
                    int64_t width, GatedMlpSaved& saved);

// Fills saved from n [T, D]; writes out [T, D] = add + down(...) unless out is empty.
void gated_mlp_forward(Pass& pass, const BlockContext& context, const GatedMlpKeys& keys,
                       const GatedMlpSaved& saved, TensorView n, BlockOutput output);

// d_out [T, D] of the compute type; writes d_n [T, D] f32.
void gated_mlp_backward(Pass& pass, const BlockContext& context, const GatedMlpKeys& keys,
                        const GatedMlpSaved& saved, TensorView n, TensorView d_out, TensorView d_n);

}  // namespace strata::model
