// SPDX-License-Identifier: Apache-2.0
// What a command that takes text needs of a model directory: tokenizer, end tokens, chat template.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

// What is said of templates: --chat-template and --vars.
struct TemplateChoice {
  std::string file = {};  // in place of the model's own; "base": that of an adapter's base
  std::string vars = {};  // a JSON object of variables; empty: none

  [[nodiscard]] bool names_file() const { return !file.empty() && file != "base"; }
};

// Nothing where the model has none. Throws Error where the file is not there, or the variables are
// no JSON object.
std::optional<text::ChatTemplate> load_chat_template(const ModelTexts& texts,
                                                     const TemplateChoice& choice);

// A model's tokenizer. Error, which says so, where it is another model's: its vocabulary has tokens
// beyond the rows that config.json says. Added tokens may be there: some families have one without
// a row.
text::Tokenizer load_tokenizer_of_model(const ModelTexts& texts);
// Nothing where the model has none.
std::optional<text::Tokenizer> find_tokenizer_of_model(const ModelTexts& texts);
// vocab_size of config.json, or of its part for text; nothing where neither has one.
std::optional<int64_t> read_vocab_size(const ModelTexts& texts);

class TextStack {
 public:
  explicit TextStack(const std::string& model);
  explicit TextStack(const ModelTexts& texts, const TemplateChoice& choice = {});

  [[nodiscard]] const text::Tokenizer& tokenizer() const { return tokenizer_; }
  [[nodiscard]] const data::EndTokens& end_tokens() const { return end_tokens_; }
  // The tokens of a text that somebody gave, with what the tokenizer adds: once, where the text
  // begins with it itself.
  [[nodiscard]] std::vector<int32_t> encode_text(const std::string& text) const;
  [[nodiscard]] bool has_template() const { return template_.has_value(); }
  [[nodiscard]] const std::optional<text::ChatTemplate>& chat_template() const { return template_; }
  [[nodiscard]] const std::string& vars() const { return vars_; }
  // The conversation as the template writes it, with the variables of `vars` that the request does
  // not have. Throws Error where there is no template.
  [[nodiscard]] std::string render(const text::ChatRequest& request) const;
  [[nodiscard]] text::RenderedChat render_marked(const text::ChatRequest& request) const;
  // The form in which its template wants conversations; the plain one without a template.
  [[nodiscard]] text::ConversationForm conversation_form() const;
  // What a user's turn of that text becomes before the answer. Throws as render().
  [[nodiscard]] std::string render_user_turn(const std::string& said) const;
  // The token that ends a turn of its template. Throws Error where there is no template.
  [[nodiscard]] std::optional<int32_t> find_turn_end_token() const;

 private:
  [[nodiscard]] const text::ChatTemplate& required_template() const;

  std::string model_, vars_;
  text::Tokenizer tokenizer_;
  data::EndTokens end_tokens_;
  std::optional<text::ChatTemplate> template_;
};

}  // namespace strata::apps
