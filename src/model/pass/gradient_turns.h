// SPDX-License-Identifier: Apache-2.0
// GradientTurns: who else adds to the gradients that a pass accumulates. What accumulates at once
// is a part: a layer's parameters and adapters, by its number, or one of those outside the layers.
// Before a pass adds to a part it waits until what the pass before it added is there. Engine thread
// only.
#pragma once
#include <cstdint>

#include "base/check.h"

namespace strata::model {

// kMtpPart is the layer of multi-token prediction with the second use of the embedding
// (model::BaseGradients), and kMtpHeadPart what is behind that layer, with the head's. The head is
// the largest product there is, so runs of its rows are parts of their own: kHeadPart and those
// below it. An adapter's head has its turn with the first.
constexpr int64_t kEmbeddingPart = -1, kFinalNormPart = -2, kMtpPart = -3, kMtpHeadPart = -4,
                  kHeadPart = -5;
constexpr int64_t kHeadParts = 8;
constexpr int64_t kPartsOutside = 4 + kHeadParts;

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

// A pass's turn with a part that begins when it first adds to that, or when somebody says so.
class Turn {
 public:
  // `turns` may be null: nobody else adds.
  Turn(GradientTurns* turns, int64_t part) : turns_(turns), part_(part) {}
  [[nodiscard]] bool has_begun() const { return has_begun_; }
  void begin() {
    CHECK(!has_begun_, part_);
    has_begun_ = true;
    if (turns_ != nullptr) turns_->begin(part_);
  }
  void end() {
    CHECK(has_begun_, part_);
    if (turns_ != nullptr) turns_->end(part_);
  }

 private:
  GradientTurns* const turns_;
  const int64_t part_;
  bool has_begun_ = false;
};

// Runs what adds to the part; `turns` may be null: nobody else adds.
template <typename Body>
void in_turn(GradientTurns* turns, int64_t part, Body&& body) {
  if (turns != nullptr) turns->begin(part);
  body();
  if (turns != nullptr) turns->end(part);
}

}  // namespace strata::model
