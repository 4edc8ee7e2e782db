// SPDX-License-Identifier: Apache-2.0
// GradientTurns: who else adds to the gradients that a pass accumulates. What accumulates at once
// is a part: a layer's parameters and adapters, by its number, or one of those outside the layers.
// Before a pass adds to a part it waits until what the pass before it added is there. Engine thread
// only.
#pragma once
#include <cstdint>

namespace strata::model {

// Of multi-token prediction also the second uses of embedding and head (model::BaseGradients).
constexpr int64_t kEmbeddingPart = -1, kFinalNormPart = -2, kHeadPart = -3, kMtpPart = -4;
constexpr int64_t kPartsOutside = 4;

class GradientTurns {
 public:
  virtual ~GradientTurns() = default;
  virtual void begin(int64_t part) = 0;
  virtual void end(int64_t part) = 0;
};

// Runs what adds to the part; `turns` may be null: nobody else adds.
template <typename Body>
void in_turn(GradientTurns* turns, int64_t part, Body&& body) {
  if (turns != nullptr) turns->begin(part);
  body();
  if (turns != nullptr) turns->end(part);
}

}  // namespace strata::model
