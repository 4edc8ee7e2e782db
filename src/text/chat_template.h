// SPDX-License-Identifier: Apache-2.0
// ChatTemplate: a model directory's own template, run by this folder's interpreter; the text equals
// transformers' apply_chat_template(tokenize=False) byte for byte, including what that function
// does to messages first: members that are null are left out, and reasoning is passed under each of
// its three names. Families whose checkpoints have none (DeepSeek-V4: text/deepseek_v4_chat.h) have
// one built in. Immutable after loading: any thread.
//   const auto chat = ChatTemplate::load(ModelTexts("models/qwen3"));
//   const std::string prompt = chat->render({.messages = json, .add_generation_prompt = true});
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/model_texts.h"

namespace strata::text {

struct ChatRequest {
  std::string messages;    // JSON list of objects
  std::string tools = {};  // JSON list, or empty
  // JSON object of further variables, or empty; they win over the tokens. A text as strftime_now is
  // what `now` is.
  std::string vars = {};
  bool add_generation_prompt = false;
  std::string now = {};  // what strftime_now sees, like "2026-01-31"; empty: the clock
};

struct RenderedChat {
  std::string text;
  // Bytes, begin and end, that the template says a model writes, by {% generation %}.
  std::vector<std::pair<size_t, size_t>> generated = {};
  bool has_read_clock = false;  // there is a date in it that nobody gave
};

// How a template wants calls of tools, which it is asked for by rendering one.
struct ConversationForm {
  bool writes_calls = false;       // else they are lost on it
  bool arguments_as_text = false;  // the JSON text, where it prints them as they are
  size_t id_length = 0;            // of a call's id; 0: any
};

// Two JSON objects of variables, or empty texts, as one: of a name that both have the second's
// value.
std::string joined_vars(const std::string& vars, const std::string& more);

class ChatTemplate {
 public:
  static constexpr int64_t kMaxFileBytes = int64_t{1} << 24;
  static constexpr std::string_view kFile = "chat_template.jinja";
  static constexpr std::string_view kToolUseFile = "additional_chat_templates/tool_use.jinja";

  // chat_template.jinja, or the field of tokenizer_config.json; nothing when the directory has
  // neither and its config.json's model_type has none built in. A second template named tool_use
  // serves requests with tools, as in transformers.
  // Loads the template of `texts` or, where it is not empty, that of `file` in place of it.
  static std::optional<ChatTemplate> load(const ModelTexts& texts, const std::string& file = "");
  // `tokenizer_config` is JSON, for the texts of bos_token and its like; may be empty.
  static ChatTemplate parse(std::string_view source, std::string_view tokenizer_config = {});

  // An Error with line and cause when the template fails, raise_exception included.
  [[nodiscard]] std::string render(const ChatRequest& request) const;
  [[nodiscard]] RenderedChat render_marked(const ChatRequest& request) const;
  [[nodiscard]] const ConversationForm& conversation_form() const;
  // The file that it is in, or file and key: "DIR/tokenizer_config.json: chat_template"; empty of
  // one that is built in. Faults of load() name it; those of render() do not, since a server's
  // clients see them.
  [[nodiscard]] const std::string& where() const;
  // Whether it writes `mark` somewhere: which marks it has says how the model's answers look.
  [[nodiscard]] bool mentions(std::string_view mark) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

// What ChatTemplate::conversation_form() is made by.
ConversationForm find_conversation_form(const ChatTemplate& chat);

}  // namespace strata::text
