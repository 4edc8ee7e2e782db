// SPDX-License-Identifier: Apache-2.0
// StopText: whether the text of one sample has come to hold one of its stop texts, which it
// borrows. Matches the generated text alone, special tokens written out; finds the token that
// completes the match. Engine thread only.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "text/stop_finder.h"
#include "text/tokenizer/detokenizer.h"

namespace strata::engine {

class StopText {
 public:
  StopText(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts)
      : detokenizer_(tokenizer), finder_(texts) {}
  // True when the text up to and including this token holds a stop text. `last`: no token follows,
  // so characters that wait for their other bytes count as they stand.
  bool push(int32_t token, bool last);

 private:
  text::IncrementalDetokenizer detokenizer_;
  text::StopFinder finder_;
};

}  // namespace strata::engine
