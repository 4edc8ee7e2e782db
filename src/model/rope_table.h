// RopeTable: cos and sin of position * frequency, times the attention factor of YaRN, for every
// position in use, [P, H / 2] f32. Angles and functions are computed in double and rounded once.
// Grows on demand. Engine thread only.
#pragma once
#include <cstdint>
#include <vector>

#include "model/config.h"
#include "tensor/arena.h"

namespace strata::model {

class RopeTable {
 public:
  explicit RopeTable(const ModelConfig& config)
      : frequencies_(rope_frequencies(config.rope, config.rope_dim())),
        factor_(rope_attention_factor(config.rope)) {}
  // Makes positions 0 .. num_positions - 1 available.
  void reserve(int64_t num_positions);
  [[nodiscard]] TensorView cos() const { return cos_.view(); }
  [[nodiscard]] TensorView sin() const { return sin_.view(); }

 private:
  std::vector<double> frequencies_;
  double factor_;
  int64_t num_positions_ = 0;
  Tensor cos_, sin_;
};

}  // namespace strata::model
