// The parameters of a layer as data: role, name in a checkpoint, shape. Weights, loading, saving
// and training are loops over these rows. D model width, E experts, F feed-forward width.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "tensor/view.h"

namespace strata::model {

// The parameters a layer may have.
enum class LayerParam : uint8_t {
  kInputNorm,
  kQProj,
  kKProj,
  kVProj,
  kOProj,
  kQBias,
  kKBias,
  kVBias,
  kOBias,
  kQNorm,
  kKNorm,
  kPostNorm,
  kGateProj,
  kUpProj,
  kDownProj,
  kGateBias,
  kUpBias,
  kDownBias,
  kRouter,
  kRouterBias,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
};
constexpr int kNumLayerParams = 26;

struct LayerParamSpec {
  LayerParam role;
  std::string_view suffix;  // after "model.layers.N."; of experts a pattern: "{}" is the expert
  Shape shape;              // [rows, cols] of a matrix (of one expert), [n] of a vector
  int64_t num_experts = 0;  // matrices of this shape; 0: a plain parameter
};

// The rows of a layer of this kind, in checkpoint order.
std::vector<LayerParamSpec> layer_params(const ModelConfig& config, LayerKind kind);

}  // namespace strata::model
