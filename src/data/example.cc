// SPDX-License-Identifier: Apache-2.0
#include "data/example.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "data/json_fields.h"
#include "data/own_form.h"
#include "text/json_field.h"

namespace strata::data {
namespace {

namespace json = boost::json;

[[noreturn]] void fail(const std::string& what) { fail_record(what); }

// The trained bytes of a text.
struct Target {
  size_t begin = 0;
  size_t end = 0;
};

bool is_in_any(const text::Span& span, const std::vector<Target>& targets) {
  return std::any_of(targets.begin(), targets.end(), [&](Target target) {
    return span.begin < target.end && span.end > target.begin;
  });
}

// Every token from index `forced` on is trained, whatever its bytes: the end token.
Example shift_and_mask(const text::Encoding& encoding, const std::vector<Target>& targets,
                       size_t forced) {
  Example example;
  const size_t num_tokens = encoding.ids.size();
  for (size_t t = 1; t < num_tokens; ++t) {
    const bool trained = t >= forced || is_in_any(encoding.spans[t], targets);
    example.tokens.push_back(encoding.ids[t - 1]);
    example.targets.push_back(encoding.ids[t]);
    example.weights.push_back(trained ? 1.0f : 0.0f);
    example.num_trained += trained ? 1 : 0;
  }
  return example;
}

// Unless an end token stands there already. The text has `num_bytes`.
void close_with_end_token(text::Encoding& encoding, size_t num_bytes, const EndTokens& end) {
  const bool closed = !encoding.ids.empty() &&
                      std::binary_search(end.stop.begin(), end.stop.end(), encoding.ids.back());
  if (closed) return;
  if (end.append < 0) {
    fail(
        "the model directory names no end token (eos_token in tokenizer_config.json, or "
        "eos_token_id)");
  }
  encoding.ids.push_back(end.append);
  encoding.spans.push_back({num_bytes, num_bytes});
}

// A plain text whose bytes from `prompt_bytes` on are trained, closed by the end token.
Example encode_text(const std::string& whole, size_t prompt_bytes, const ExampleContext& context) {
  text::Encoding encoding = context.tokenizer.encode_with_spans(whole, /*add_special=*/true);
  close_with_end_token(encoding, whole.size(), context.end_tokens);
  return shift_and_mask(encoding, {{prompt_bytes, whole.size()}}, encoding.ids.size() - 1);
}

struct Conversation {
  json::array messages;
  std::string tools;  // JSON, "" when there are none

  [[nodiscard]] bool is_assistant(size_t turn) const {
    return messages[turn].get_object().at("role").get_string() == "assistant";
  }
  // The first `count` turns.
  [[nodiscard]] std::string render(const ExampleContext& context, size_t count,
                                   bool with_prompt) const {
    return context.render(json::serialize(json::array(messages.begin(), messages.begin() + count)),
                          tools, with_prompt);
  }
};

void check_message(const json::value& value, size_t turn) {
  const json::object* message = value.if_object();
  if (message == nullptr)
    fail(fmt::format("messages[{}]: got {}, want an object", turn, kind_of(value)));
  const json::value* role = message->if_contains("role");
  if (role == nullptr || !role->is_string())
    fail(fmt::format("messages[{}].role: want a string", turn));
  const json::value* content = message->if_contains("content");
  if (content == nullptr || content->is_null()) {
    if (!message->contains("tool_calls"))
      fail(fmt::format("messages[{}].content: want a string", turn));
  } else if (!content->is_string()) {
    fail(fmt::format("messages[{}].content: got {}, want a string{}", turn, kind_of(*content),
                     content->is_array() ? " (join its text parts)" : ""));
  }
}

// "" where there are none.
std::string serialize_tools(const json::object& object) {
  const json::value* tools = field_of(object, "tools");
  if (tools == nullptr) return "";
  if (!tools->is_array()) fail(fmt::format("tools: got {}, want a list", kind_of(*tools)));
  return json::serialize(*tools);
}

Conversation read_conversation(const json::object& object) {
  const json::value& messages = object.at("messages");
  if (!messages.is_array()) fail(fmt::format("messages: got {}, want a list", kind_of(messages)));
  Conversation conversation{.messages = messages.get_array(), .tools = ""};
  for (size_t turn = 0; turn < conversation.messages.size(); ++turn) {
    check_message(conversation.messages[turn], turn);
  }
  if (conversation.messages.empty() ||
      !conversation.is_assistant(conversation.messages.size() - 1)) {
    fail("messages: want a conversation that ends with an assistant turn");
  }
  conversation.tools = serialize_tools(object);
  return conversation;
}

[[noreturn]] void fail_not_a_prefix(size_t turn, const char* part, bool is_last) {
  // Mistral's, for one, writes the system text only where a user turn is the last.
  const char* advice = is_last ? "if there is a system turn, write its text into the user's turn"
                               : "train on the last turn only, one line a turn";
  fail(
      fmt::format("messages[{}]: the chat template does not render {} as the start of the whole "
                  "conversation, so the turn's tokens cannot be told from the rest; {}",
                  turn, part, advice));
}

// The bytes of the assistant's turn `turn` in the render of the whole conversation.
Target find_turn_bytes(const Conversation& conversation, const std::string& whole, size_t turn,
                       bool is_last, const ExampleContext& context) {
  const std::string prompt = conversation.render(context, turn, /*with_prompt=*/true);
  if (!whole.starts_with(prompt)) fail_not_a_prefix(turn, "the turns before it", is_last);
  if (is_last) return {prompt.size(), whole.size()};
  const std::string through = conversation.render(context, turn + 1, /*with_prompt=*/false);
  if (!whole.starts_with(through) || through.size() < prompt.size()) {
    fail_not_a_prefix(turn, "the turns up to it", is_last);
  }
  return {prompt.size(), through.size()};
}

// No turn before `first` is trained.
Example encode_chat_turns(const json::object& object, size_t first, const ExampleContext& context) {
  const Conversation conversation = read_conversation(object);
  const size_t last = conversation.messages.size() - 1;
  const std::string whole = conversation.render(context, last + 1, /*with_prompt=*/false);
  std::vector<Target> targets;
  for (size_t turn = context.train_on == TrainOn::kAll ? first : last; turn <= last; ++turn) {
    if (!conversation.is_assistant(turn)) continue;
    targets.push_back(find_turn_bytes(conversation, whole, turn, turn == last, context));
  }
  const text::Encoding encoding = context.tokenizer.encode_with_spans(whole, /*add_special=*/false);
  return shift_and_mask(encoding, targets, encoding.ids.size());
}

// Of one of our own forms.
Example encode_record(const json::object& own, size_t first_trained,
                      const ExampleContext& context) {
  Example example;
  if (own.contains("messages")) {
    example = encode_chat_turns(own, first_trained, context);
  } else if (own.contains("text")) {
    example = encode_text(require_string_field(own, "text"), 0, context);
  } else {
    const std::string prompt = require_string_field(own, "prompt");
    example = encode_text(prompt + require_string_field(own, "completion"), prompt.size(), context);
  }
  if (example.num_trained == 0) fail("nothing to train on: no token of the text is a target");
  return example;
}

}  // namespace

ReadRecord read_record(std::string_view text, const ExampleContext& context,
                       std::vector<std::string>& ignored) {
  const json::value value = text::parse_json(text, "the record");
  if (!value.is_object()) fail(fmt::format("got {}, want an object", kind_of(value)));
  const OwnRecord own = to_own_form(value.get_object(), context.has_template, ignored);
  ReadRecord record{.form = own.form,
                    .example = encode_record(own.object, own.first_trained, context)};
  if (own.rejected) record.rejected = encode_record(*own.rejected, own.first_trained, context);
  return record;
}

void refuse_pair(const ReadRecord& record) {
  if (!record.rejected) return;
  fail("a preference pair (chosen, rejected): strata train does not train on preferences yet");
}

Example make_example(std::string_view line, const ExampleContext& context,
                     std::vector<std::string>& ignored) {
  ReadRecord record = read_record(line, context, ignored);
  refuse_pair(record);
  return std::move(record.example);
}

}  // namespace strata::data
