// SPDX-License-Identifier: Apache-2.0
// Gated delta net: out_proj(norm(o) * silu(z)), where o is the gated delta rule over queries, keys
// and values that one projection and a causal convolution make of n, and the rule's decay and
// learning rate come from two narrow projections. Between passes it keeps the convolution's last
// inputs and the rule's state; where a pass reads drafts, a log too (ReplaySpec). Source: HF
// modeling_qwen3_5.py, Qwen3_5GatedDeltaNet.
#pragma once
#include "model/blocks/block.h"
#include "ops/delta_net.h"

namespace strata::model {

struct GatedDeltaNetConfig {
  int64_t num_key_heads = 0;
  int64_t num_value_heads = 0;
  int64_t key_dim = 0;    // of a head
  int64_t value_dim = 0;  // likewise
  int64_t conv_width = 0;
  double eps = 1e-6;  // of the norm
  // Files have q, k, v and z as rows of one matrix, and b and a of another: first all that belongs
  // to the first key head. Qwen3-Next's do.
  bool fused_by_key_head = false;
  [[nodiscard]] ops::DeltaNetShape shape() const {
    return {num_key_heads, num_value_heads, key_dim, value_dim};
  }
  [[nodiscard]] int64_t value_width() const { return num_value_heads * value_dim; }
  friend bool operator==(const GatedDeltaNetConfig&, const GatedDeltaNetConfig&) = default;
};

extern const BlockOps kGatedDeltaNet;

}  // namespace strata::model
