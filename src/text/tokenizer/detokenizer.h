// SPDX-License-Identifier: Apache-2.0
// IncrementalDetokenizer: text as its tokens arrive. Never emits half a character; what push() and
// flush() return, joined, equals Tokenizer::decode of all ids. With byte fallback a run of byte
// tokens comes out when the run ends, since a wrong byte in it changes all of it. One thread.
//   IncrementalDetokenizer detokenizer(tokenizer, /*skip_special=*/true);
//   for (int32_t id : sampled) send(detokenizer.push(id));
//   send(detokenizer.flush());
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace strata::text {

class IncrementalDetokenizer {
 public:
  // Where special tokens are skipped, those of the texts `shown` are not.
  explicit IncrementalDetokenizer(Tokenizer tokenizer, bool skip_special = false,
                                  const std::vector<std::string_view>& shown = {});
  ~IncrementalDetokenizer();
  IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept;
  IncrementalDetokenizer& operator=(IncrementalDetokenizer&&) noexcept;

  // The text that `id` completes; ids without a token give none.
  [[nodiscard]] std::string push(int32_t id);
  // What was still waiting; afterwards a new text begins.
  [[nodiscard]] std::string flush();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strata::text
