// SPDX-License-Identifier: Apache-2.0
#include "text/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <deque>
#include <initializer_list>
#include <optional>
#include <utility>

#include "text/jinja/value.h"
#include "text/json_field.h"

namespace strata::text {
namespace {

namespace json = boost::json;

constexpr size_t kShownBytes = 100;  // of a text, in messages

bool is_in(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

json::string to_json_string(std::string_view text) {
  return json::string(text.data(), text.size());
}

std::string_view view_of(const json::string& text) { return {text.data(), text.size()}; }

// The template's word for a role; empty where it is not known.
std::string_view known_role(std::string_view role) {
  if (is_in(role, {"system", "developer"})) return "system";
  if (is_in(role, {"user", "human", "prompter"})) return "user";
  if (is_in(role, {"assistant", "gpt", "model", "chatgpt", "bing", "bard"})) return "assistant";
  if (is_in(role,
            {"tool", "function", "ipython", "observation", "function_response", "tool_response"}))
    return "tool";
  return "";
}

// Turns of calls alone, whose content is their JSON text.
bool is_role_of_calls(std::string_view role) { return is_in(role, {"function_call", "tool_call"}); }

// Nothing where it is none, and then why.
std::optional<json::value> try_parse_json(std::string_view text, std::string& why) {
  try {
    return parse_json(text, "the text");
  } catch (const Error& error) {
    why = error.what();
    return std::nullopt;
  }
}

// An object that may stand in a text.
void unpack_item(json::value& item, const Fields& of, const std::string& path,
                 std::string_view wanted) {
  std::string why;
  if (item.is_string()) item = try_parse_json(view_of(item.get_string()), why).value_or(nullptr);
  if (!item.is_object())
    of.fail(path, fmt::format("wanted {}{}{}", wanted, why.empty() ? "" : ": ", why));
}

// JSON as Python's json.dumps writes it, without escapes of what is not ASCII.
std::string python_json(const json::value& value) {
  return to_json(Value::from_json(json::serialize(value), "arguments"), {});
}

// The member, or the JSON text in it, as a value; nothing where it is missing, null or "".
std::optional<json::value> unpacked(const Fields& of, std::string_view name,
                                    std::string_view wanted) {
  const json::value* value = of.find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return *value;
  const std::string_view text = view_of(value->get_string());
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return std::nullopt;
  std::string why;
  std::optional<json::value> parsed = try_parse_json(text, why);
  if (!parsed) of.fail(name, fmt::format("wanted {} or its JSON text: {}", wanted, why));
  return parsed;
}

// Ids of calls, in the length that the template wants.
std::string fitted_call_id(std::string id, size_t length) {
  if (length == 0) return id;
  if (id.size() > length) return id.substr(id.size() - length);
  return std::string(length - id.size(), '0') + id;
}

// What a list of parts says.
struct Parts {
  std::string text, reasoning;
};

void add_line(std::string_view line, bool is_first, std::string& text) {
  if (!is_first) text += '\n';
  text += line;
}

std::string reasoning_of_part(const Fields& part) {
  const char* name = part.has("thinking")    ? "thinking"
                     : part.has("reasoning") ? "reasoning"
                                             : "text";
  if (part.has(name) && !part.is_string(name)) {  // Mistral's: parts again
    std::string text;
    bool is_first = true;
    part.each_object(name, [&](const Fields& inner) {
      add_line(inner.string("text"), std::exchange(is_first, false), text);
    });
    return text;
  }
  return part.string(name);
}

Parts read_parts(const Fields& message, std::string_view name) {
  Parts out;
  bool is_first = true, is_first_thought = true;
  message.each_object(name, [&](const Fields& part) {
    const std::string type = part.string_or("type", "text");
    if (is_in(type, {"thinking", "reasoning"})) {
      add_line(reasoning_of_part(part), std::exchange(is_first_thought, false), out.reasoning);
    } else if (is_in(type, {"text", "input_text", "output_text"})) {
      add_line(part.string("text"), std::exchange(is_first, false), out.text);
    } else {
      part.fail("type", fmt::format("'{}' is not supported: Strata reads text alone",
                                    type.substr(0, kShownBytes)));
    }
  });
  return out;
}

bool is_list_of_parts(const json::value& value) {
  const json::array* items = value.if_array();
  return items != nullptr && std::ranges::all_of(*items, [](const json::value& item) {
           const json::object* part = item.if_object();
           return part != nullptr && (part->contains("type") || part->contains("text"));
         });
}

// A call's name and arguments, which stand in `function` or next to the id.
json::object read_function(const Fields& function, const ConversationForm& form) {
  const std::string name = function.string("name");
  if (name.empty()) function.fail("name", "wanted the name of a function, got an empty text");
  const char* key = "arguments";
  for (const char* other : {"parameters", "input"})
    if (!function.has(key) && function.has(other)) key = other;
  json::value arguments = unpacked(function, key, "an object").value_or(json::object());
  if (!arguments.is_object()) function.fail(key, "wanted an object or the JSON text of one");
  if (!all_finite(arguments)) function.fail(key, "has a number that 64 bits do not hold");
  if (form.arguments_as_text) {
    const json::value* given = function.find(key);
    // A text that a model wrote stays as it wrote it.
    if (given != nullptr && given->is_string() && !given->get_string().empty()) {
      arguments = given->get_string();
    } else {
      arguments = to_json_string(python_json(arguments));
    }
  }
  return {{"name", to_json_string(name)}, {"arguments", std::move(arguments)}};
}

void check_type_is_function(const Fields& of) {
  const std::string type = of.string_or("type", "function");
  if (type == "function") return;
  of.fail("type",
          fmt::format("'{}' is not supported, only 'function'", type.substr(0, kShownBytes)));
}

}  // namespace

std::span<const TrainingMark> training_marks() {
  static constexpr TrainingMark kMarks[] = {{"weight"},
                                            {"train"},
                                            {"trainable"},
                                            {"label"},
                                            {"kto_tag"},
                                            {"masked", /*trains=*/false},
                                            {"ignore", /*trains=*/false},
                                            // In a record these often mean something else.
                                            {"training", true, /*of_record=*/false},
                                            {"loss", true, /*of_record=*/false}};
  return kMarks;
}

bool all_finite(const json::value& value) {
  if (value.is_double()) return std::isfinite(value.get_double());
  if (value.is_array()) return std::ranges::all_of(value.get_array(), all_finite);
  return !value.is_object() || std::ranges::all_of(value.get_object(), [](const auto& field) {
    return all_finite(field.value());
  });
}

struct ConversationReader::State {
  ConversationForm form;
  Roles roles = Roles::kKnown;
  json::array messages;
  // Ids of calls whose result did not come yet, for results that do not say whose they are.
  std::deque<std::string> open_calls;
  size_t num_made_ids = 0;

  // A template that wants ids of a length gets one for each call.
  std::string make_id() {
    return fitted_call_id(fmt::format("{}", num_made_ids++), form.id_length);
  }

  json::object read_call(const Fields& call) {
    check_type_is_function(call);
    json::object out;
    std::string id = call.string_or("id", "");
    if (!id.empty()) id = fitted_call_id(std::move(id), form.id_length);
    if (id.empty() && form.id_length > 0) id = make_id();
    if (!id.empty()) out["id"] = to_json_string(id);
    open_calls.push_back(std::move(id));
    out["type"] = "function";
    out["function"] = read_function(call.has("function") ? call.object("function") : call, form);
    return out;
  }

  // Adds the calls of a member, which is a list, one object, or the JSON text of either.
  void add_calls(const Fields& message, std::string_view name, json::array& calls) {
    std::optional<json::value> value = unpacked(message, name, "a list of calls");
    if (!value) return;
    if (value->is_object()) value = json::array{*std::move(value)};
    if (!value->is_array()) message.fail(name, "wanted a list of calls");
    size_t index = 0;
    for (json::value& call : value->get_array()) {
      const std::string path = fmt::format("{}[{}]", name, index++);
      unpack_item(call, message, path, "an object, a call");
      try {
        calls.push_back(read_call(Fields(call.get_object(), "")));
      } catch (const FieldFault& fault) {
        const std::string_view what = fault.what();
        message.fail(fmt::format("{}.{}", path, fault.field), what.substr(fault.field.size() + 2));
      }
    }
  }

  std::string read_result_id(const Fields& message) {
    std::string id = message.string_or("tool_call_id", "");
    if (!id.empty()) {
      id = fitted_call_id(std::move(id), form.id_length);
      std::erase(open_calls, id);
      return id;
    }
    if (open_calls.empty()) return form.id_length > 0 ? make_id() : "";
    id = std::move(open_calls.front());
    open_calls.pop_front();
    return form.id_length > 0 ? id : "";
  }

  std::string read_role(const Fields& message, std::string_view name) const {
    const std::string role = message.string(name);
    const std::string_view known = known_role(role);
    if (!known.empty()) return std::string(known);
    if (name == "from") {
      message.fail(name, fmt::format("got '{}', wanted human, gpt, system or tool",
                                     role.substr(0, kShownBytes)));
    }
    if (roles == Roles::kKnown) {
      message.fail(name, fmt::format("got '{}', wanted system, developer, user, assistant or tool",
                                     role.substr(0, kShownBytes)));
    }
    return role;
  }

  // A message's content, with the reasoning that may be parts of it.
  static Parts read_said(const Fields& message, std::string_view role, std::string_view name) {
    Parts out;
    const json::value* content = message.find(name);
    if (content == nullptr) return out;
    if (content->is_string()) {
      out.text = message.string(name);
    } else if (role == "tool" && !is_list_of_parts(*content)) {
      out.text = python_json(*content);
    } else if (content->is_array()) {
      out = read_parts(message, name);
    } else {
      message.fail(name, "wanted a string or a list of parts");
    }
    return out;
  }

  void add(const Fields& message) {
    const bool is_share_gpt = !message.has("role") && message.has("from");
    const char* role_name = is_share_gpt ? "from" : "role";
    const char* said_name = is_share_gpt && !message.has("content") ? "value" : "content";
    const bool holds_calls = message.has(role_name) && is_role_of_calls(message.string(role_name));
    const std::string role = holds_calls ? "assistant" : read_role(message, role_name);
    json::array calls;
    if (holds_calls) {
      add_calls(message, said_name, calls);
    } else {
      for (const char* name : {"tool_calls", "function_call"}) {
        if (!message.has(name)) continue;
        add_calls(message, name, calls);
        if (!calls.empty() && role != "assistant")
          message.fail(name,
                       fmt::format("calls of a turn of {}; only an assistant's has some", role));
      }
    }
    const Parts said = holds_calls ? Parts() : read_said(message, role, said_name);
    json::object out;
    out["role"] = to_json_string(role);
    out["content"] = to_json_string(said.text);
    const bool thinks = add_reasoning(message, said, role, out);
    if (!message.has(said_name) && calls.empty() && !thinks) {
      message.fail(said_name, "this field is required: wanted a string or a list of parts");
    }
    if (!calls.empty()) out["tool_calls"] = std::move(calls);
    if (role == "tool") {
      const std::string id = read_result_id(message);
      if (!id.empty()) out["tool_call_id"] = to_json_string(id);
    }
    add_others(message, {role_name, said_name}, out);
    messages.push_back(std::move(out));
  }

  // Whether there is some.
  static bool add_reasoning(const Fields& message, const Parts& said, std::string_view role,
                            json::object& out) {
    if (role != "assistant") return false;
    std::optional<std::string> text;
    for (const char* name : {"reasoning_content", "thinking", "reasoning"})
      if (!text && message.has(name)) text = message.string(name);
    if (!text && !said.reasoning.empty()) text = said.reasoning;
    if (text) out["reasoning_content"] = to_json_string(*text);
    return text.has_value();
  }

  static void add_others(const Fields& message, std::initializer_list<std::string_view> read,
                         json::object& out) {
    message.each_name([&](const std::string& name) {
      if (is_in(name, read) ||
          std::ranges::count(training_marks(), name, &TrainingMark::name) > 0 || out.contains(name))
        return;
      if (is_in(name, {"tool_calls", "function_call", "tool_call_id", "reasoning_content",
                       "thinking", "reasoning"}))
        return;
      out[name] = *message.find(name);
    });
  }
};

ConversationReader::ConversationReader(const ConversationForm& form, Roles roles)
    : state_(std::make_unique<State>()) {
  state_->form = form;
  state_->roles = roles;
}
ConversationReader::~ConversationReader() = default;

void ConversationReader::add(const Fields& message) { state_->add(message); }
bool ConversationReader::empty() const { return state_->messages.empty(); }
json::array ConversationReader::take() { return std::move(state_->messages); }

namespace {

// A tool that stands without `function` around it, too.
json::object normalized_tool(const Fields& tool, const json::object& given) {
  check_type_is_function(tool);
  json::object out;
  if (tool.has("function")) {
    static_cast<void>(tool.object("function").string("name"));
    if (!given.contains("type")) out["type"] = "function";
    for (const auto& [name, value] : given) out[name] = value;
  } else {
    static_cast<void>(tool.string("name"));
    json::object function;
    for (const auto& [name, value] : given)
      if (name != "type" && !value.is_null()) function[name] = value;
    out["type"] = "function";
    out["function"] = std::move(function);
  }
  json::object& function = out["function"].get_object();
  const Fields fields = tool.has("function") ? tool.object("function") : tool;
  if (auto parameters = unpacked(fields, "parameters", "a JSON schema"))
    function["parameters"] = std::move(*parameters);
  return out;
}

}  // namespace

json::array normalized_tools(const json::value& tools, const std::string& where) {
  json::object holder;
  holder[where] = tools;
  const Fields of(holder, "");
  std::optional<json::value> list = unpacked(of, where, "a list of tools");
  if (!list) return {};
  if (list->is_object()) list = json::array{*std::move(list)};
  if (!list->is_array()) of.fail(where, "wanted a list of tools");
  json::array out;
  for (json::value& tool : list->get_array()) {
    const std::string path = fmt::format("{}[{}]", where, out.size());
    unpack_item(tool, of, path, "an object, a function's JSON schema");
    if (!all_finite(tool)) of.fail(path, "has a number that 64 bits do not hold");
    out.push_back(normalized_tool(Fields(tool.get_object(), path + "."), tool.get_object()));
  }
  return out;
}

}  // namespace strata::text
