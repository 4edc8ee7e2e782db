// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/detokenizer.h"

#include "text/tokenizer/decoder.h"
#include "text/tokenizer/tokenizer_impl.h"

namespace strata::text {

struct IncrementalDetokenizer::State {
  State(Tokenizer from, bool skip)
      : tokenizer(std::move(from)),
        skip_special(skip),
        stream(tokenizer.impl_->spec.decoder, tokenizer.impl_->spec.has_decoder) {}

  Tokenizer tokenizer;
  bool skip_special;
  DecodeStream stream;
};

IncrementalDetokenizer::IncrementalDetokenizer(Tokenizer tokenizer, bool skip_special)
    : state_(std::make_unique<State>(std::move(tokenizer), skip_special)) {}
IncrementalDetokenizer::~IncrementalDetokenizer() = default;
IncrementalDetokenizer::IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept = default;
IncrementalDetokenizer& IncrementalDetokenizer::operator=(IncrementalDetokenizer&&) noexcept =
    default;

std::string IncrementalDetokenizer::push(int32_t id) {
  std::string out;
  const std::string* token = state_->tokenizer.impl_->find_token(id, state_->skip_special);
  if (token != nullptr) state_->stream.push(*token, out);
  return out;
}

std::string IncrementalDetokenizer::flush() {
  std::string out;
  state_->stream.flush(out);
  return out;
}

}  // namespace strata::text
