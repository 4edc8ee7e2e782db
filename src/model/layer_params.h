// The parameters of a layer as data: role, name in a checkpoint, shape. Weights, loading, saving
// and training are loops over these rows. D model width, E experts, F feed-forward width.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "model/config.h"
#include "model/row_blocks.h"
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
  kQAProj,
  kQABias,
  kQANorm,
  kQBProj,
  kKvAProj,
  kKvABias,
  kKvANorm,
  kKvBProj,
};
constexpr int kNumLayerParams = 34;

struct LayerParamSpec {
  LayerParam role{};
  std::string_view suffix;  // after "model.layers.N."; of experts a pattern: "{}" is the expert
  Shape shape;              // [rows, cols] of a matrix (of one expert), [n] of a vector
  int64_t num_experts = 0;  // matrices of this shape; 0: a plain parameter
  RowBlocks blocks = {};    // of a matrix that is read in parts
  bool buffer = false;      // not trained, kept in f32
};

// A short list that allocates nothing: the plan of a warm pass asks for it.
class LayerParamSpecs {
 public:
  void push_back(const LayerParamSpec& spec) { rows_.at(size_++) = spec; }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] const LayerParamSpec& operator[](size_t i) const { return rows_[i]; }
  [[nodiscard]] const LayerParamSpec* begin() const { return rows_.data(); }
  [[nodiscard]] const LayerParamSpec* end() const { return rows_.data() + size_; }

 private:
  std::array<LayerParamSpec, kNumLayerParams> rows_;
  size_t size_ = 0;
};

// The rows of a layer of this kind, in checkpoint order.
LayerParamSpecs layer_params(const ModelConfig& config, LayerKind kind);

}  // namespace strata::model
