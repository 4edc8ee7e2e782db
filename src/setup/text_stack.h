// SPDX-License-Identifier: Apache-2.0
// What a command that takes text needs of a model directory: tokenizer, end tokens, chat template.
#pragma once
#include <optional>
#include <string>

#include "base/model_texts.h"
#include "data/end_tokens.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::apps {

// The control token that a template writes behind an assistant's text (<|im_end|>, <end_of_turn>):
// it ends an answer in a chat, also where no file of the directory says so, as in those of base
// models. Nothing when the template writes none. `vars` as in ChatRequest.
std::optional<int32_t> find_turn_end_token(const text::ChatTemplate& chat,
                                           const text::Tokenizer& tokenizer,
                                           const std::string& vars);

class TextStack {
 public:
  explicit TextStack(const std::string& model);
  explicit TextStack(const ModelTexts& texts);

  [[nodiscard]] const text::Tokenizer& tokenizer() const { return tokenizer_; }
  [[nodiscard]] const data::EndTokens& end_tokens() const { return end_tokens_; }
  [[nodiscard]] bool has_template() const { return template_.has_value(); }
  // The conversation as the directory's template writes it. Throws Error where there is no
  // template.
  [[nodiscard]] std::string render(const text::ChatRequest& request) const;
  // Of its template. Throws Error where there is none.
  [[nodiscard]] std::optional<int32_t> find_turn_end_token(const std::string& vars) const;

 private:
  [[nodiscard]] const text::ChatTemplate& required_template() const;

  std::string model_;
  text::Tokenizer tokenizer_;
  data::EndTokens end_tokens_;
  std::optional<text::ChatTemplate> template_;
};

}  // namespace strata::apps
