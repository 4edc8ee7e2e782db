// SPDX-License-Identifier: Apache-2.0
// GradientTurns: who else adds to the gradients that a pass accumulates. What accumulates at once
// is a part: a layer's parameters and adapters, by its number, or one of those outside the layers.
// Before a pass adds to a part it waits until what the pass before it added is there. Engine thread
// only.
#pragma once
#include <cstdint>

namespace strata::model {

// kMtpPart has also the second uses of embedding and head (model::BaseGradients). The head is the
// largest product there is, so runs of its rows are parts of their own: kHeadPart and those below
// it. An adapter's head has its turn with the first.
constexpr int64_t kEmbeddingPart = -1, kFinalNormPart = -2, kMtpPart = -3, kHeadPart = -4;
constexpr int64_t kHeadParts = 8;
constexpr int64_t kPartsOutside = 3 + kHeadParts;

// Rows [first, end) of the head that are the part kHeadPart - number; of a small head the last have
// most, or all.
struct HeadRows {
  int64_t first = 0;
  int64_t end = 0;
};
[[nodiscard]] inline HeadRows rows_of_head_part(int64_t num_rows, int64_t number) {
  constexpr int64_t kMultiple = 64;
  const auto begin = [&](int64_t i) {
    return i == kHeadParts ? num_rows : num_rows * i / kHeadParts / kMultiple * kMultiple;
  };
  return {begin(number), begin(number + 1)};
}

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
