// SPDX-License-Identifier: Apache-2.0
// RopeTable: cos and sin of position * frequency, times the attention factor of YaRN and the
// position's scale, for every position in use, [P, H / 2] f32. Angles and functions are computed in
// double and rounded once. Grows on demand. Engine thread only.
#pragma once
#include <cstdint>
#include <vector>

#include "backend/arena.h"
#include "backend/backend.h"
#include "model/families/rope_config.h"

namespace strata::model {

class RopeTable {
 public:
  RopeTable(Backend& backend, const RopeSpec& spec)
      : backend_(backend),
        frequencies_(rope_frequencies(spec.config, spec.dim)),
        factor_(rope_attention_factor(spec.config)),
        position_scale_(spec.position_scale) {}
  // Computes positions 0 .. num_positions - 1 where they are not there yet.
  void extend_to(int64_t num_positions);
  [[nodiscard]] TensorView cos() const { return cos_.view(); }
  [[nodiscard]] TensorView sin() const { return sin_.view(); }

 private:
  Backend& backend_;
  std::vector<double> frequencies_;
  double factor_;
  PositionScale position_scale_;
  int64_t num_positions_ = 0;
  Tensor cos_, sin_;
};

// The tables of a model, in the order of ModelConfig::ropes.
class RopeTables {
 public:
  RopeTables(Backend& backend, const std::vector<RopeSpec>& specs) {
    for (const RopeSpec& spec : specs) tables_.emplace_back(backend, spec);
  }
  void extend_to(int64_t num_positions) {
    for (RopeTable& table : tables_) table.extend_to(num_positions);
  }
  [[nodiscard]] const RopeTable& operator[](int index) const {
    return tables_[static_cast<size_t>(index)];
  }

 private:
  std::vector<RopeTable> tables_;
};

}  // namespace strata::model
