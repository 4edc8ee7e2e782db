// SPDX-License-Identifier: Apache-2.0
// Choice: one answer of a request as its tokens come: text in whole characters, ended before a stop
// text, and in a chat divided into reasoning, content and calls. However the tokens come in pieces,
// what it gives joins to the same. Borrows the order and the model's text. One thread.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/openai/answer_order.h"
#include "server/openai/served_text.h"
#include "text/stop_finder.h"
#include "text/tokenizer/detokenizer.h"

namespace strata::server {

class Choice {
 public:
  Choice(const AnswerOrder& order, const api::Sample& sample, const ServedText& text);

  // `ended`: these are the last; `stopped`: by a stop id or text, and not by max_tokens.
  AnswerPiece decode_tokens(std::span<const int32_t> tokens, bool ended, bool stopped);
  [[nodiscard]] bool has_ended() const { return has_ended_; }
  // Why it ended, once it has: stop, length or tool_calls.
  [[nodiscard]] const char* finish_reason() const;
  [[nodiscard]] int64_t num_calls() const { return parser_ ? parser_->num_calls() : 0; }

 private:
  [[nodiscard]] std::span<const int32_t> without_stop_id(std::span<const int32_t> tokens) const;
  std::string decode_certain_text(std::span<const int32_t> tokens, bool ended, bool stopped);

  const api::Sample& sample_;
  text::IncrementalDetokenizer detokenizer_;
  text::StopFinder stops_;
  std::optional<AnswerParser> parser_;
  bool has_ended_ = false;
  bool is_stopped_ = false;
};

}  // namespace strata::server
