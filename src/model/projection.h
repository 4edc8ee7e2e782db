// The linear projections of a layer, each a place where an adapter may sit: its path in the module
// tree and its parameters.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "model/layer_params.h"

namespace strata::model {

enum class Projection : uint8_t {
  kQ,
  kK,
  kV,
  kO,
  kGate,
  kUp,
  kDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kQA,
  kQB,
  kKvA,
  kKvB,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kExpertGateUp,  // for adapters only: gate and up of all experts with one A (PEFT)
};
constexpr int kNumProjections = 18;
constexpr int kEmbedding = kNumProjections;  // module kinds outside the layers
constexpr int kHead = kNumProjections + 1;
constexpr int kNumModuleKinds = kNumProjections + 2;

// kNoParam where there is none.
LayerParam weight_of(Projection projection);
LayerParam bias_of(Projection projection);
constexpr auto kNoParam = static_cast<LayerParam>(255);
// Whether it belongs to the routed experts: one matrix each, rows of the routed order.
constexpr bool is_expert(Projection projection) {
  return projection >= Projection::kExpertGate && projection <= Projection::kExpertGateUp;
}
// Below the layer: "self_attn.q_proj", "mlp.shared_experts.up_proj"; "embed_tokens", "lm_head".
std::string_view module_kind_path(int kind);
// Its last component: "q_proj", "up_proj".
std::string_view module_kind_name(int kind);

// Whether a layer of this kind has the projection, and its {inputs, outputs}; {0, 0} where it has
// not.
std::array<int64_t, 2> projection_widths(const ModelConfig& config, LayerKind kind,
                                         Projection projection);
// How the projection's outputs divide; empty for most.
RowBlocks projection_blocks(const ModelConfig& config, Projection projection);

}  // namespace strata::model
