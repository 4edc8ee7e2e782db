// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: sum over the chosen experts of weight * expert(n) + shared(n), expert(n) =
// down(act(gate(n)) * up(n)). Sources: HF modeling_qwen3_moe.py, Qwen3MoeSparseMoeBlock;
// modeling_deepseek_v3.py, DeepseekV3MoE; modeling_qwen3_5_moe.py, Qwen3_5MoeSparseMoeBlock;
// modeling_deepseek_v4.py, DeepseekV4SparseMoeBlock (which clamps gate and up);
// modeling_gpt_oss.py, GptOssMLP (which does so in another form and has biases);
// modeling_gemma4.py, Gemma4TextDecoderLayer, Gemma4TextRouter (whose paths each norm the state x
// that they read and what they give: norm(shared(norm(x))) + norm(routed(norm(x))), chosen by a
// norm of x too, and each expert's weight is times a number of its own);
// modeling_llama4.py, Llama4TextMoe (whose experts read n times their weight). No
// capacity: every token reaches its experts, and its result depends on no other token. The router's
// weight else goes into the expert's hidden values before the down projection, which is linear; of
// down's bias it is a factor of its own. A token's experts are summed in fp32 in the order of its
// choice.
#pragma once
#include "model/blocks/block.h"
#include "ops/clamped_swiglu.h"
#include "ops/gated.h"

namespace strata::model {

// How a router scores experts: softmax over all of them (Qwen3), sigmoid with a correction bias
// that counts in the choice only, by groups (DeepSeek-V3), or the root of softplus, with such a
// bias, or for experts that a table gives each token id (DeepSeek-V4), or by the logit, of which
// the weight is the sigmoid (Llama 4).
enum class RouterKind : uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus, kTable, kLogit };

struct MoeConfig {
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t expert_width = 0;  // of a routed expert's feed-forward
  int64_t shared_width = 0;  // of the shared experts together; 0: none
  bool shared_gate = false;  // the shared expert counts by sigmoid(gate . n), a number a token
  RouterKind router = RouterKind::kSoftmax;
  bool norm_topk = false;  // weights of the chosen experts sum to one before `scale`
  // Experts in groups, of which top_groups take part: those of the largest sum of their two best
  // scores, or of the largest score.
  int64_t num_groups = 1;
  int64_t top_groups = 1;
  bool one_best = false;
  double scale = 1.0;          // of the weights
  int64_t vocab_size = 0;      // of the table
  ops::SwigluForm clamp = {};  // of gate and up of all experts, where its limit is not 0
  bool router_bias = false;    // a term of the logits
  bool expert_bias = false;    // of gate, up and down of the routed experts
  bool weighs_inputs = false;  // an expert reads n times its weight, and counts by 1
  bool norms_paths = false;    // as Gemma 4: the block's input is the state, with shared experts
  double eps = 1e-6;           // of these norms
  ops::Activation activation = ops::Activation::kSilu;  // where nothing is clamped
  bool alternating = false;  // gate and up of PEFT's gate_up_proj are rows in turn, not halves
  bool swapped = false;      // PEFT takes inputs of all experts' tensors for outputs (Llama 4)
  friend bool operator==(const MoeConfig&, const MoeConfig&) = default;
};

extern const BlockOps kMoe;

// Keys of its parameters.
enum MoeKey : uint8_t {
  kMoeRouter,
  kMoeRouterBias,
  kMoeGate,  // of the routed experts
  kMoeUp,
  kMoeDown,
  kMoeGateUp,  // gate and up of all experts with one A, for adapters alone
  kMoeSharedGate,
  kMoeSharedUp,
  kMoeSharedDown,
  kMoeSharedScale,
  kMoeTable,
  kMoeLogitBias,
  kMoeGateBias,  // of the routed experts
  kMoeUpBias,
  kMoeDownBias,
  kMoeRouterNorm,   // the multiplier of the norm that the router reads
  kMoeExpertScale,  // of each expert's weight
  kMoeSharedNormBefore,
  kMoeSharedNormAfter,
  kMoeRoutedNormBefore,
  kMoeRoutedNormAfter
};

}  // namespace strata::model
