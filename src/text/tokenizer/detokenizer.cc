// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/detokenizer.h"

#include <algorithm>
#include <utility>

#include "text/tokenizer/decoder.h"
#include "text/tokenizer/tokenizer_impl.h"

namespace strata::text {

struct IncrementalDetokenizer::State {
  State(Tokenizer from, bool skip, const std::vector<std::string_view>& texts)
      : tokenizer(std::move(from)),
        skip_special(skip),
        stream(tokenizer.impl_->spec.decoder, tokenizer.impl_->spec.has_decoder) {
    for (const std::string_view text : texts) {
      if (const auto id = tokenizer.token_to_id(text)) shown.push_back(*id);
    }
  }
  [[nodiscard]] bool skips(int32_t id) const {
    return skip_special && std::ranges::find(shown, id) == shown.end();
  }

  Tokenizer tokenizer;
  bool skip_special;
  std::vector<int32_t> shown;
  DecodeStream stream;
};

IncrementalDetokenizer::IncrementalDetokenizer(Tokenizer tokenizer, bool skip_special,
                                               const std::vector<std::string_view>& shown)
    : state_(std::make_unique<State>(std::move(tokenizer), skip_special, shown)) {}
IncrementalDetokenizer::~IncrementalDetokenizer() = default;
IncrementalDetokenizer::IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept = default;
IncrementalDetokenizer& IncrementalDetokenizer::operator=(IncrementalDetokenizer&&) noexcept =
    default;

std::string IncrementalDetokenizer::push(int32_t id) {
  std::string out;
  const std::string* token = state_->tokenizer.impl_->find_token(id, state_->skips(id));
  if (token != nullptr) state_->stream.push(*token, out);
  return out;
}

std::string IncrementalDetokenizer::flush() {
  std::string out;
  state_->stream.flush(out);
  return out;
}

}  // namespace strata::text
