// SPDX-License-Identifier: Apache-2.0
#include "server/openai/choice.h"

#include <algorithm>

namespace strata::server {

Choice::Choice(const AnswerOrder& order, const api::Sample& sample, const ServedText& text)
    : sample_(sample),
      detokenizer_(text.tokenizer, /*skip_special=*/true, order.form.marks()),
      stops_(sample.stop_texts) {
  if (order.is_chat) {
    parser_.emplace(order.form, AnswerReading{.in_reasoning = order.in_reasoning,
                                              .types = order.types.get(),
                                              .most_calls = order.most_calls});
  }
}

// An end token is no part of the text, also where it is no special one.
std::span<const int32_t> Choice::without_stop_id(std::span<const int32_t> tokens) const {
  const bool by_id =
      !tokens.empty() && std::ranges::find(sample_.stop, tokens.back()) != sample_.stop.end();
  return tokens.first(tokens.size() - (by_id ? 1 : 0));
}

// Text that no stop text can still cut.
std::string Choice::decode_certain_text(std::span<const int32_t> tokens, bool ended, bool stopped) {
  if (ended && stopped) tokens = without_stop_id(tokens);
  std::string certain;
  for (const int32_t token : tokens) certain += stops_.push(detokenizer_.push(token));
  if (ended) {
    certain += stops_.push(detokenizer_.flush());
    certain += stops_.flush();
    has_ended_ = true;
    is_stopped_ = stopped || stops_.found();
  }
  return certain;
}

AnswerPiece Choice::decode_tokens(std::span<const int32_t> tokens, bool ended, bool stopped) {
  std::string certain = decode_certain_text(tokens, ended, stopped);
  if (!parser_) return {.content = std::move(certain)};
  AnswerPiece piece = parser_->push(certain);
  if (!ended) return piece;
  AnswerPiece rest = parser_->finish();
  piece.reasoning += rest.reasoning;
  piece.content += rest.content;
  append_call_pieces(piece.calls, std::move(rest.calls));
  return piece;
}

const char* Choice::finish_reason() const {
  if (parser_ && parser_->is_done()) return "tool_calls";
  if (!is_stopped_) return "length";
  return num_calls() > 0 ? "tool_calls" : "stop";
}

}  // namespace strata::server
