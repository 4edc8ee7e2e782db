// StopText: whether the text of one sample has come to hold one of its stop texts. Matches the
// generated text alone, special tokens written out; finds the token that completes the match.
// Engine thread only.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "text/detokenizer.h"

namespace strata::engine {

class StopText {
 public:
  StopText(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts);
  // True when the text up to and including this token holds a stop text. `last`: no token follows,
  // so characters that wait for their other bytes count as they stand.
  bool push(int32_t token, bool last);

 private:
  text::IncrementalDetokenizer detokenizer_;
  const std::vector<std::string>& texts_;
  size_t longest_ = 0;
  std::string tail_;  // what a match may still begin in
};

}  // namespace strata::engine
