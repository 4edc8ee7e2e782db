// SPDX-License-Identifier: Apache-2.0
// find_conversation_form() of text/chat_template.h: what a template makes of one call says how it
// wants calls, of families that nobody has seen too.
#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/json_reader.h"

namespace strata::text {
namespace {

constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"probed","description":"d","parameters":)"
    R"({"type":"object","properties":{}}}}])";
constexpr std::string_view kArguments = R"({"probed_key": "probed_value"})";
constexpr size_t kAnyLength = 24;  // that no template wants
constexpr size_t kMostLength = 40;

std::string conversation_with_call(const std::string& arguments, size_t id_length, bool answers) {
  const std::string id(id_length, 'a');
  std::string messages = fmt::format(
      R"([{{"role":"user","content":"q"}},{{"role":"assistant","content":"","tool_calls":)"
      R"([{{"id":"{}","type":"function","function":{{"name":"probed","arguments":{}}}}}]}})",
      id, arguments);
  if (answers) {
    messages +=
        fmt::format(R"(,{{"role":"tool","name":"probed","tool_call_id":"{}","content":"r"}})", id);
  }
  return messages + "]";
}

// What is next to a call: an answer of its tool, and the tools of the request.
struct Surroundings {
  bool answers, tools;
};

// Nothing where the template fails.
std::optional<std::string> render_call(const ChatTemplate& chat, bool as_text, size_t id_length,
                                       Surroundings around) {
  const std::string arguments =
      as_text ? json_quote(std::string(kArguments)) : std::string(kArguments);
  try {
    return chat.render({.messages = conversation_with_call(arguments, id_length, around.answers),
                        .tools = around.tools ? kTools : ""});
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool shows(const std::optional<std::string>& text, std::string_view what) {
  return text && text->find(what) != std::string::npos;
}

// Whether the object's members are there, not as Python prints a dict.
bool walks_object(const std::optional<std::string>& text) {
  return shows(text, "probed_key") && shows(text, "probed_value") && !shows(text, "'probed_key'");
}

std::optional<ConversationForm> find_form(const ChatTemplate& chat, size_t id_length,
                                          Surroundings around) {
  if (walks_object(render_call(chat, /*as_text=*/false, id_length, around)))
    return ConversationForm{.writes_calls = true};
  if (shows(render_call(chat, /*as_text=*/true, id_length, around), kArguments))
    return ConversationForm{.writes_calls = true, .arguments_as_text = true};
  return std::nullopt;
}

}  // namespace

ConversationForm find_conversation_form(const ChatTemplate& chat) {
  if (!chat.mentions("tool_calls")) return {};
  // A second template, for requests with tools, is the one that writes calls.
  for (const Surroundings around :
       {Surroundings{true, true}, {true, false}, {false, true}, {false, false}}) {
    if (const auto form = find_form(chat, kAnyLength, around)) return *form;
    for (size_t length = 1; length <= kMostLength; ++length) {
      auto form = find_form(chat, length, around);
      if (!form) continue;
      form->id_length = length;
      return *form;
    }
  }
  return {};
}

}  // namespace strata::text
