// SPDX-License-Identifier: Apache-2.0
#include "data/chat_example.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/ascii.h"
#include "data/json_fields.h"
#include "data/training_marks.h"
#include "text/conversation.h"
#include "text/json_field.h"

namespace strata::data {
namespace {

namespace json = boost::json;

std::string path_of_turn(const json::object& own, const OwnRecord& record, size_t turn) {
  const json::value* answer = own.if_contains(kAnswerField);
  if (answer != nullptr && turn + 1 == own.at("messages").get_array().size())
    return std::string(answer->get_string());
  if (turn < record.num_added) return "system";
  return fmt::format("{}[{}]", record.turns_field, turn - record.num_added);
}

// "" where there are none.
std::string read_tools(const json::object& own) {
  const json::value* tools = field_of(own, "tools");
  if (tools == nullptr) return "";
  const json::array list = text::normalized_tools(*tools, "tools");
  return list.empty() ? "" : json::serialize(list);
}

std::string read_vars(const json::object& own) {
  const json::value* vars = field_of(own, "chat_template_kwargs");
  if (vars == nullptr) return "";
  if (!vars->is_object()) {
    fail_record(fmt::format("chat_template_kwargs: got {}, want an object", kind_of(*vars)));
  }
  return json::serialize(*vars);
}

}  // namespace

ReadConversation read_conversation(const json::object& own, const OwnRecord& record,
                                   const text::ConversationForm& form) {
  const json::value& messages = own.at("messages");
  if (!messages.is_array()) {
    fail_record(fmt::format("{}: got {}, want a list", record.turns_field, kind_of(messages)));
  }
  ReadConversation out;
  text::ConversationReader reader(form, text::Roles::kAny);
  const json::array& given = messages.get_array();
  for (size_t turn = 0; turn < given.size(); ++turn) {
    const std::string path = path_of_turn(own, record, turn);
    if (!given[turn].is_object())
      fail_record(fmt::format("{}: got {}, want an object", path, kind_of(given[turn])));
    reader.add(text::Fields(given[turn].get_object(), path + "."));
  }
  out.conversation.messages = reader.take();
  for (size_t turn = 0; turn < given.size(); ++turn) {
    const json::object& message = out.conversation.messages[turn].get_object();
    if (message.contains("tool_calls") && !form.writes_calls) {
      fail_record(
          fmt::format("{}: it calls tools, and the chat template writes no calls, so that "
                      "they would be lost; --chat-template names one that does",
                      path_of_turn(own, record, turn)));
    }
    const json::value& role = message.at("role");
    out.is_marked_out.push_back(!is_message_trained(
        text::Fields(given[turn].get_object(), path_of_turn(own, record, turn) + "."),
        std::string_view(role.get_string())));
  }
  if (given.empty() || !out.conversation.is_assistant(given.size() - 1)) {
    std::string last = "got no turn";
    if (!given.empty()) {
      const json::object& message = out.conversation.messages[given.size() - 1].get_object();
      last = fmt::format("got one of '{}'", std::string_view(message.at("role").get_string()));
    }
    fail_record(
        fmt::format("{}: {} at the end, want a conversation that ends with an assistant turn",
                    record.turns_field, last));
  }
  out.conversation.tools = read_tools(own);
  out.conversation.vars = read_vars(own);
  return out;
}

std::optional<ReadConversation> parse_conversation(std::string_view record, bool has_template,
                                                   const text::ConversationForm& form,
                                                   json::object& own) {
  const json::value value = text::parse_json(record, "the record");
  if (!value.is_object()) return std::nullopt;
  std::vector<std::string> ignored;
  OwnRecord of = to_own_form(value.get_object(), has_template, ignored);
  if (!of.object.contains("messages")) return std::nullopt;
  own = std::move(of.object);
  return read_conversation(own, of, form);
}

namespace {

// Mistral's templates, for some, write the system's text only where a user's turn is the last: the
// model would be asked with it and trained without.
void check_system_is_there(const ReadConversation& read, const AnswerSpans& spans) {
  const json::array& messages = read.conversation.messages;
  for (size_t turn = 0; turn < messages.size(); ++turn) {
    const json::object& message = messages[turn].get_object();
    if (message.at("role") != "system") continue;
    const json::string& content = message.at("content").get_string();
    const std::string_view text = trimmed({content.data(), content.size()});
    if (spans.whole().text.find(text) != std::string::npos) continue;
    if (spans.prompt_of_last().find(text) == std::string::npos) continue;
    fail_record(
        fmt::format("messages[{}]: the chat template leaves the system text out once the "
                    "conversation ends with an answer, though it is in the prompt of one; "
                    "write its text into the user's turn",
                    turn));
  }
}

}  // namespace

ChatText render_answers(const ReadConversation& read, size_t first, TrainOn train_on,
                        Renderer render) {
  const AnswerSpans spans(read.conversation, render);
  check_system_is_there(read, spans);
  ChatText out{.rendered = spans.whole(), .targets = {}};
  const size_t last = read.conversation.messages.size() - 1;
  for (size_t turn = train_on == TrainOn::kAll ? first : last; turn <= last; ++turn) {
    if (!read.conversation.is_assistant(turn)) continue;
    if (read.is_marked_out[turn]) {
      ++out.num_marked_out;
      continue;
    }
    const std::vector<Target> found = spans.find(turn);
    if (found.empty()) {
      out.not_found.push_back(fmt::format(
          "messages[{}]: {}", turn,
          spans.whole().generated.empty()
              ? "the turn's text cannot be found in what the chat template makes of the whole "
                "conversation"
              : "the chat template has no {% generation %} around the turn"));
    }
    out.targets.insert(out.targets.end(), found.begin(), found.end());
  }
  return out;
}

}  // namespace strata::data
