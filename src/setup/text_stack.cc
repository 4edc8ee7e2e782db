// SPDX-License-Identifier: Apache-2.0
#include "setup/text_stack.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/source.h"
#include "text/json_field.h"
#include "text/json_reader.h"

namespace strata::apps {

namespace {

// From the first character that is no space; empty where the answer ends the text, or is not in it.
std::string render_text_behind_answer(const text::ChatTemplate& chat, const std::string& vars) {
  constexpr std::string_view kAnswer = "answer of this turn";
  const std::string text =
      chat.render({.messages = fmt::format(R"([{{"role":"user","content":"question"}},)"
                                           R"({{"role":"assistant","content":"{}"}}])",
                                           kAnswer),
                   .vars = vars});
  const size_t at = text.rfind(kAnswer);
  if (at == std::string::npos) return "";
  const size_t behind = text.find_first_not_of(" \n", at + kAnswer.size());
  return behind == std::string::npos ? "" : text.substr(behind);
}

}  // namespace

TextStack::TextStack(const std::string& model) : TextStack(open_texts(model)) {}

std::optional<text::ChatTemplate> load_chat_template(const ModelTexts& texts,
                                                     const TemplateChoice& choice) {
  if (!choice.vars.empty()) text::parse_json_object(choice.vars, "--vars");
  if (!choice.file.empty() && !file_exists(choice.file)) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("--chat-template: {}: there is no such file; want a Jinja template, "
                            "like chat_template.jinja of a model",
                            choice.file));
  }
  return text::ChatTemplate::load(texts, choice.file);
}

TextStack::TextStack(const ModelTexts& texts, const TemplateChoice& choice)
    : model_(texts.where()),
      vars_(choice.vars),
      tokenizer_(text::Tokenizer::load(texts)),
      end_tokens_(data::load_end_tokens(texts, tokenizer_)),
      template_(load_chat_template(texts, choice)) {}

const text::ChatTemplate& TextStack::required_template() const {
  if (!template_) {
    throw Error(ErrorCode::kInvalidArgument,
                model_ +
                    ": no chat template (chat_template.jinja, or chat_template in "
                    "tokenizer_config.json); is it a base model?");
  }
  return *template_;
}

text::ConversationForm TextStack::conversation_form() const {
  return template_ ? template_->conversation_form() : text::ConversationForm{};
}

std::string TextStack::render(const text::ChatRequest& request) const {
  return render_marked(request).text;
}

text::RenderedChat TextStack::render_marked(const text::ChatRequest& request) const {
  text::ChatRequest with_vars = request;
  with_vars.vars = text::joined_vars(vars_, request.vars);
  return required_template().render_marked(with_vars);
}

std::string TextStack::render_user_turn(const std::string& said) const {
  return render(
      {.messages = fmt::format(R"([{{"role":"user","content":{}}}])", text::json_quote(said)),
       .add_generation_prompt = true});
}

std::optional<int32_t> TextStack::find_turn_end_token() const {
  return apps::find_turn_end_token(required_template(), tokenizer_, vars_);
}

std::optional<int32_t> find_turn_end_token(const text::ChatTemplate& chat,
                                           const text::Tokenizer& tokenizer,
                                           const std::string& vars) {
  const std::string behind = render_text_behind_answer(chat, vars);
  if (behind.empty()) return std::nullopt;
  const std::vector<int32_t> ids = tokenizer.encode(behind);
  if (ids.empty() || !tokenizer.is_special(ids.front())) return std::nullopt;
  return ids.front();
}

}  // namespace strata::apps
