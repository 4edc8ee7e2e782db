// SPDX-License-Identifier: Apache-2.0
#include "setup/text_stack.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <filesystem>
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

// What `body` gives; a fault of the template names its file.
template <typename Body>
auto run_naming_template(const text::ChatTemplate& chat, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (chat.where().empty()) throw;  // it is in no file
    throw Error(error.code, fmt::format("{}: {}", chat.where(), error.what()));
  }
}

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;

// A file's JSON object, empty where there is none.
boost::json::object read_optional_object(const ModelTexts& texts, std::string_view name) {
  const auto text = texts.find(name, kMaxConfigBytes);
  return text ? text::parse_json_object(*text, texts.where(name)) : boost::json::object();
}

// "'HuggingFaceTB/SmolLM2-135M'", where transformers wrote where a tokenizer came from.
std::string read_origin_of_tokenizer(const ModelTexts& texts) {
  const boost::json::object config = read_optional_object(texts, "tokenizer_config.json");
  const boost::json::value* name = config.if_contains("name_or_path");
  if (name == nullptr || !name->is_string() || name->get_string().empty()) return "another model";
  return fmt::format("'{}'", std::string_view(name->get_string()));
}

}  // namespace

std::optional<int64_t> read_vocab_size(const ModelTexts& texts) {
  const boost::json::object config = read_optional_object(texts, "config.json");
  const boost::json::value* part = config.if_contains("text_config");
  const boost::json::object& fields =
      part != nullptr && part->is_object() && !config.contains("vocab_size") ? part->get_object()
                                                                             : config;
  const boost::json::value* size = fields.if_contains("vocab_size");
  if (size == nullptr || !size->is_int64() || size->get_int64() <= 0) return std::nullopt;
  return size->get_int64();
}

namespace {

void check_tokenizer_of_model(const ModelTexts& texts, const text::Tokenizer& tokenizer) {
  // A GGUF file has as many rows as tokens.
  if (!std::filesystem::is_directory(texts.where())) return;
  const std::optional<int64_t> rows = read_vocab_size(texts);
  if (!rows) return;
  for (int64_t id = *rows; id < tokenizer.vocab_size(); ++id) {
    const auto token = tokenizer.id_to_token(static_cast<int32_t>(id));
    if (!token || tokenizer.is_added(static_cast<int32_t>(id))) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: this tokenizer is of {} ({} tokens); the model is '{}' ({} tokens, by "
                    "vocab_size of its config.json), which has none for '{}', id {}; put the "
                    "tokenizer.json here that the model was saved with",
                    texts.where("tokenizer.json"), read_origin_of_tokenizer(texts),
                    tokenizer.vocab_size(), texts.where(), *rows, *token, id));
  }
}

}  // namespace

text::Tokenizer load_tokenizer_of_model(const ModelTexts& texts) {
  text::Tokenizer tokenizer = text::Tokenizer::load(texts);
  check_tokenizer_of_model(texts, tokenizer);
  return tokenizer;
}

std::optional<text::Tokenizer> find_tokenizer_of_model(const ModelTexts& texts) {
  std::optional<text::Tokenizer> tokenizer = text::Tokenizer::find(texts);
  if (tokenizer) check_tokenizer_of_model(texts, *tokenizer);
  return tokenizer;
}

TextStack::TextStack(const std::string& model) : TextStack(open_texts(model)) {}

std::optional<text::ChatTemplate> load_chat_template(const ModelTexts& texts,
                                                     const TemplateChoice& choice) {
  if (!choice.vars.empty()) text::parse_json_object(choice.vars, "--vars");
  if (choice.names_file() && !file_exists(choice.file)) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("--chat-template: {}: there is no such file; want a Jinja template, "
                            "like chat_template.jinja of a model, or base",
                            choice.file));
  }
  return text::ChatTemplate::load(texts, choice.names_file() ? choice.file : "");
}

TextStack::TextStack(const ModelTexts& texts, const TemplateChoice& choice)
    : model_(texts.where()),
      vars_(choice.vars),
      tokenizer_(load_tokenizer_of_model(texts)),
      end_tokens_(data::load_end_tokens(texts, tokenizer_)),
      template_(load_chat_template(texts, choice)) {}

const text::ChatTemplate& TextStack::required_template() const {
  if (!template_) {
    throw Error(ErrorCode::kInvalidArgument,
                model_ +
                    ": no chat template (chat_template.jinja, or chat_template in "
                    "tokenizer_config.json); is it a base model? strata generate completes text "
                    "without one; or put the template of its family there as chat_template.jinja");
  }
  return *template_;
}

text::ConversationForm TextStack::conversation_form() const {
  return template_ ? template_->conversation_form() : text::ConversationForm{};
}

std::vector<int32_t> TextStack::encode_text(const std::string& text) const {
  std::vector<int32_t> ids = tokenizer_.encode(text, /*add_special=*/true);
  const auto doubled = static_cast<std::ptrdiff_t>(tokenizer_.num_doubled_at_start(text));
  ids.erase(ids.begin(), ids.begin() + doubled);
  return ids;
}

std::string TextStack::render(const text::ChatRequest& request) const {
  return render_marked(request).text;
}

text::RenderedChat TextStack::render_marked(const text::ChatRequest& request) const {
  text::ChatRequest with_vars = request;
  with_vars.vars = text::joined_vars(vars_, request.vars);
  const text::ChatTemplate& chat = required_template();
  return run_naming_template(chat, [&] { return chat.render_marked(with_vars); });
}

std::string TextStack::render_user_turn(const std::string& said) const {
  return render(
      {.messages = fmt::format(R"([{{"role":"user","content":{}}}])", text::json_quote(said)),
       .add_generation_prompt = true});
}

std::optional<int32_t> TextStack::find_turn_end_token() const {
  const text::ChatTemplate& chat = required_template();
  return run_naming_template(chat,
                             [&] { return apps::find_turn_end_token(chat, tokenizer_, vars_); });
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
