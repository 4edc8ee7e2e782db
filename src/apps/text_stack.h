// What a command that takes text needs of a model directory: tokenizer, end tokens, chat template.
#pragma once
#include <string>

#include "data/end_tokens.h"
#include "text/tokenizer.h"

namespace strata::apps {

class TextStack {
 public:
  explicit TextStack(const std::string& model_dir);

  [[nodiscard]] const text::Tokenizer& tokenizer() const { return tokenizer_; }
  [[nodiscard]] const data::EndTokens& end_tokens() const { return end_tokens_; }
  // The conversation as the directory's template writes it. tools: JSON or "". Throws Error where there is no template.
  [[nodiscard]] std::string render(const std::string& messages, const std::string& tools, bool with_prompt) const;

 private:
  std::string dir_;
  text::Tokenizer tokenizer_;
  data::EndTokens end_tokens_;
};

}  // namespace strata::apps
