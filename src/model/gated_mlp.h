// down(silu(gate(n)) * up(n)): the gated MLP of a dense layer, and of the shared experts of a
// sparse one. T tokens, D model width, F feed-forward width. Internal to model/. Engine thread
// only.
#pragma once
#include "model/decoder_layer.h"

namespace strata::model {

struct GatedMlp {
  Projection gate, up, down;
};
constexpr GatedMlp kDenseMlp = {Projection::kGate, Projection::kUp, Projection::kDown};
constexpr GatedMlp kSharedMlp = {Projection::kSharedGate, Projection::kSharedUp,
                                 Projection::kSharedDown};

// Fills acts.gate, acts.up and their lora_h from n [T, D]; writes out [T, D] = add + down(...)
// unless out is empty (recompute needs only the rest).
void gated_mlp_forward(Pass& pass, int64_t layer, const GatedMlp& mlp, const LayerActivations& acts,
                       TensorView n, TensorView add, TensorView out);

// d_out [T, D] of the compute type; writes d_n [T, D] f32.
void gated_mlp_backward(Pass& pass, int64_t layer, const GatedMlp& mlp,
                        const LayerActivations& acts, TensorView n, TensorView d_out,
                        TensorView d_n);

}  // namespace strata::model
