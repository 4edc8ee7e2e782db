// SPDX-License-Identifier: Apache-2.0
// Forms: Qwen2.5 and Qwen3 (JSON in <tool_call>), Qwen3-Coder, Qwen3.5 and later (<function=...> in
// <tool_call>), Mistral v3 to v13, DeepSeek-V3 to V3.1, DeepSeek-V4 (DSML), Llama 3.1 and later.
#include "server/openai/tool_call.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>

#include "server/json.h"
#include "server/openai/json_text.h"

namespace strata::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kFence = "```json";
constexpr std::string_view kDeepSeekSep = "<\uff5ctool\u2581sep\uff5c>";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

// Without the space that it begins with.
std::string_view from_text(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// Without the one line break on either side that the form writes.
std::string_view without_breaks(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// What stands before `mark` in `text`, which then begins behind it; nothing, and no change, where
// there is none.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = text.substr(0, at);
  text.remove_prefix(at + mark.size());
  return before;
}

bool is_object(std::string_view text) {
  const std::optional<json::value> value = parse_json_text(text);
  return value && value->is_object();
}

// {"name": TEXT, "arguments" or "parameters": OBJECT}, and whatever else.
std::optional<ToolCall> read_object(std::string_view text) {
  const std::optional<json::value> value = parse_json_text(text);
  if (!value || !value->is_object()) return std::nullopt;
  const json::object& object = value->get_object();
  const json::value* name = object.if_contains("name");
  if (name == nullptr || !name->is_string() || name->get_string().empty()) return std::nullopt;
  ToolCall call{.name = json::value_to<std::string>(*name), .arguments = "{}"};
  for (const char* key : {"arguments", "parameters"}) {
    const json::value* arguments = object.if_contains(key);
    if (arguments == nullptr || arguments->is_null()) continue;
    if (arguments->is_string()) {
      call.arguments = json::value_to<std::string>(*arguments);
    } else {
      call.arguments = std::string(json_member(text, key));
    }
    if (!is_object(call.arguments)) return std::nullopt;
    break;
  }
  return call;
}

ToolCalls one(std::optional<ToolCall> call) {
  if (!call) return std::nullopt;
  return std::vector<ToolCall>{std::move(*call)};
}

// <parameter=NAME> VALUE </parameter>, of which the end may be missing before the next.
std::optional<ToolParameter> next_of_function(std::string_view& text, bool is_last) {
  std::string_view rest = text;
  if (!take_until(rest, "<parameter=")) return std::nullopt;
  const std::optional<std::string_view> key = take_until(rest, ">");
  if (!key) return std::nullopt;
  size_t end = std::min(rest.find("</parameter>"), rest.find("<parameter="));
  if (end == std::string_view::npos) {
    if (!is_last) return std::nullopt;
    end = std::min(rest.rfind("</function>"), rest.size());
  }
  ToolParameter out = {std::string(trimmed(*key)),
                       std::string(without_breaks(rest.substr(0, end)))};
  text = rest.substr(end);
  return out;
}

// <function=NAME> and parameters </function>
ToolCalls read_function(std::string_view text, const ToolTypes& types) {
  take_until(text, "<function=");
  const std::optional<std::string_view> name = take_until(text, ">");
  if (!name || trimmed(*name).empty()) return std::nullopt;
  const std::string function(trimmed(*name));
  JsonObject arguments;
  while (const auto parameter = next_of_function(text, /*is_last=*/true)) {
    arguments.add(parameter->name,
                  Json::written(types.value(function, parameter->name, parameter->text)));
  }
  return one(ToolCall{function, arguments.text()});
}

ToolCalls read_qwen(std::string_view inner, const ToolTypes& types) {
  const std::string_view text = trimmed(inner);
  return text.starts_with("<function=") ? read_function(text, types) : one(read_object(text));
}

// [{...}, ...] or NAME[CALL_ID]ID[ARGS]{...}, of which [CALL_ID]ID and [ARGS] may be missing.
ToolCalls read_mistral(std::string_view inner, const ToolTypes&) {
  const std::string_view text = trimmed(inner);
  std::vector<ToolCall> calls;
  if (text.starts_with('[') || text.starts_with("{\"")) {
    if (!parse_json_text(text)) return std::nullopt;
    const auto items = text.front() == '[' ? json_items(text) : std::vector<std::string_view>{text};
    for (const std::string_view item : items) {
      std::optional<ToolCall> call = read_object(item);
      if (!call) return std::nullopt;
      calls.push_back(std::move(*call));
    }
    return calls.empty() ? std::nullopt : ToolCalls(std::move(calls));
  }
  const size_t brace = text.find('{');
  if (brace == std::string_view::npos || !is_object(text.substr(brace))) return std::nullopt;
  const std::string_view head = text.substr(0, brace);
  const std::string_view name = trimmed(head.substr(0, head.find('[')));
  if (name.empty()) return std::nullopt;
  return one(ToolCall{std::string(name), std::string(text.substr(brace))});
}

// function<sep>NAME\n```json\n{...}\n``` of V3 and R1, NAME<sep>{...} of V3.1.
ToolCalls read_deepseek_v3(std::string_view inner, const ToolTypes&) {
  const std::optional<std::string_view> head = take_until(inner, kDeepSeekSep);
  if (!head) return std::nullopt;
  std::string_view name = trimmed(*head);
  std::string_view arguments = trimmed(inner);
  if (!arguments.starts_with('{')) {
    const std::optional<std::string_view> before = take_until(arguments, kFence);
    if (!before) return std::nullopt;
    name = trimmed(*before);
    arguments = trimmed(arguments.substr(0, arguments.rfind("```")));
  }
  if (name.empty() || !is_object(arguments)) return std::nullopt;
  return one(ToolCall{std::string(name), std::string(arguments)});
}

// <DSML parameter name="NAME" string="true|false">VALUE</DSML parameter>
std::optional<ToolParameter> next_of_dsml(std::string_view& text, bool /*is_last*/) {
  std::string_view rest = text;
  if (!take_until(rest, "<\uff5cDSML\uff5cparameter") || !take_until(rest, "name=\"")) {
    return std::nullopt;
  }
  const std::optional<std::string_view> key = take_until(rest, "\"");
  const std::optional<std::string_view> kind = take_until(rest, ">");
  const std::optional<std::string_view> value = take_until(rest, "</\uff5cDSML\uff5cparameter>");
  if (!key || !kind || !value) return std::nullopt;
  text = rest;
  if (kind->find("string=\"false\"") == std::string_view::npos)
    return ToolParameter{std::string(*key), json_quoted(*value), true};
  const bool is_json = parse_json_text(*value).has_value();
  return ToolParameter{std::string(*key),
                       is_json ? std::string(trimmed(*value)) : json_quoted(*value), true};
}

// name="NAME"> and parameters
ToolCalls read_dsml(std::string_view inner, const ToolTypes&) {
  if (!take_until(inner, "name=\"")) return std::nullopt;
  const std::optional<std::string_view> name = take_until(inner, "\"");
  if (!name || name->empty() || !take_until(inner, ">")) return std::nullopt;
  JsonObject arguments;
  while (const auto parameter = next_of_dsml(inner, /*is_last=*/true))
    arguments.add(parameter->name, Json::written(parameter->text));
  return one(ToolCall{std::string(*name), arguments.text()});
}

// Objects with semicolons between them.
ToolCalls read_llama(std::string_view inner, const ToolTypes&) {
  std::vector<ToolCall> calls;
  std::string_view text = trimmed(inner);
  while (!text.empty()) {
    const size_t end = json_value_end(text, 0);
    std::optional<ToolCall> call = read_object(text.substr(0, end));
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
    text = trimmed(text.substr(end));
    if (text.starts_with(';')) text = trimmed(text.substr(1));
  }
  return calls.empty() ? std::nullopt : ToolCalls(std::move(calls));
}

CallHead known(std::string_view name, size_t arguments) {
  CallHead head = {.name = std::string(name), .arguments = arguments};
  head.state = name.empty() ? CallHead::State::kNone : CallHead::State::kKnown;
  return head;
}

CallHead none() { return {.state = CallHead::State::kNone}; }

size_t place(std::string_view text, std::string_view part) {
  return static_cast<size_t>(part.data() - text.data());
}

// {"name": TEXT, ..., "arguments" or "parameters": {
CallHead object_head(std::string_view text) {
  std::string name;
  std::string_view rest = from_text(text.substr(text.find('{') + 1));
  while (!rest.empty()) {
    if (rest.front() != '"') return none();
    const size_t key_end = json_value_end(rest, 0);
    const size_t colon = rest.find_first_not_of(kSpace, key_end);
    if (colon == std::string_view::npos) return {};
    const std::string_view key = rest.substr(0, key_end);
    rest = from_text(rest.substr(colon + 1));
    if (rest.empty()) return {};
    if (key == "\"arguments\"" || key == "\"parameters\"") {
      CallHead head = known(rest.front() == '{' ? name : "", place(text, rest));
      head.is_member = true;
      return head;
    }
    const size_t end = json_value_end(rest, 0);
    if (end == rest.size()) return {};
    const std::optional<json::value> value = parse_json_text(rest.substr(0, end));
    if (!value || (key == "\"name\"" && !value->is_string())) return none();
    if (key == "\"name\"") name = json::value_to<std::string>(*value);
    rest = from_text(rest.substr(end));
    if (rest.empty()) return {};
    if (rest.front() != ',') return none();
    rest = from_text(rest.substr(1));
  }
  return {};
}

CallHead llama_head(std::string_view inner) {
  const std::string_view text = from_text(inner);
  if (text.empty()) return {};
  return text.front() == '{' ? object_head(inner) : none();
}

CallHead qwen_head(std::string_view inner) {
  constexpr std::string_view kFunction = "<function=";
  const std::string_view text = from_text(inner);
  if (text.empty() || kFunction.starts_with(text)) return {};
  if (text.front() == '{') return object_head(inner);
  if (!text.starts_with(kFunction)) return none();
  std::string_view rest = text.substr(kFunction.size());
  const std::optional<std::string_view> name = take_until(rest, ">");
  if (!name) return {};
  CallHead head = known(trimmed(*name), place(inner, rest));
  head.next = next_of_function;
  return head;
}

CallHead mistral_head(std::string_view inner) {
  const std::string_view text = from_text(inner);
  if (text.empty()) return {};
  if (text.front() == '[' || text.front() == '{') return none();
  const size_t brace = inner.find('{');
  if (brace == std::string_view::npos) return {};
  return known(trimmed(text.substr(0, text.find_first_of("[{"))), brace);
}

CallHead deepseek_v3_head(std::string_view inner) {
  std::string_view rest = inner;
  const std::optional<std::string_view> head = take_until(rest, kDeepSeekSep);
  if (!head) return {};
  rest = from_text(rest);
  if (rest.empty()) return {};
  if (rest.front() == '{') return known(trimmed(*head), place(inner, rest));
  const std::optional<std::string_view> name = take_until(rest, kFence);
  rest = from_text(rest);
  if (!name || rest.empty()) return {};
  return rest.front() == '{' ? known(trimmed(*name), place(inner, rest)) : none();
}

CallHead dsml_head(std::string_view inner) {
  std::string_view rest = inner;
  if (!take_until(rest, "name=\"")) return {};
  const std::optional<std::string_view> name = take_until(rest, "\"");
  if (!name || !take_until(rest, ">")) return {};
  CallHead head = known(*name, place(inner, rest));
  head.next = next_of_dsml;
  return head;
}

const std::vector<CallForm>& call_forms() {
  static const std::vector<CallForm> kForms = {
      {.sign = "\uff5cDSML\uff5c",
       .open = "<\uff5cDSML\uff5cinvoke",
       .close = "</\uff5cDSML\uff5cinvoke>",
       .around = {"<\uff5cDSML\uff5ctool_calls>", "</\uff5cDSML\uff5ctool_calls>",
                  "<\uff5cDSML\uff5cfunction_calls>", "</\uff5cDSML\uff5cfunction_calls>"},
       .inside = {"\uff5cDSML\uff5c"},
       .read = read_dsml,
       .head = dsml_head},
      {.sign = "<\uff5ctool\u2581call\u2581begin\uff5c>",
       .open = "<\uff5ctool\u2581call\u2581begin\uff5c>",
       .close = "<\uff5ctool\u2581call\u2581end\uff5c>",
       .around = {"<\uff5ctool\u2581calls\u2581begin\uff5c>",
                  "<\uff5ctool\u2581calls\u2581end\uff5c>"},
       .inside = {"<\uff5ctool\u2581sep\uff5c>"},
       .read = read_deepseek_v3,
       .head = deepseek_v3_head,
       .keeps_arguments_text = true},
      {.sign = "[TOOL_CALLS]",
       .open = "[TOOL_CALLS]",
       .close = "",
       .around = {},
       .inside = {"[ARGS]", "[CALL_ID]"},
       .read = read_mistral,
       .head = mistral_head,
       .id_length = 9},
      {.sign = "<tool_call>",
       .open = "<tool_call>",
       .close = "</tool_call>",
       .around = {},
       .inside = {},
       .read = read_qwen,
       .head = qwen_head},
      {.sign = "\"parameters\": ",
       .open = "",
       .close = "",
       .around = {"<|python_tag|>"},
       .inside = {},
       .read = read_llama,
       .head = llama_head},
  };
  return kForms;
}

// A number as JSON writes it, or nothing.
std::optional<std::string> number_text(std::string_view text, bool whole) {
  const std::optional<json::value> value = parse_json_text(text);
  if (!value || !value->is_number() || (whole && value->is_double())) return std::nullopt;
  return std::string(text);
}

}  // namespace

ToolTypes::ToolTypes(std::string_view tools) {
  const std::optional<json::value> list = parse_json_text(tools);
  if (!list || !list->is_array()) return;
  for (const json::value& tool : list->get_array()) {
    const auto* function = tool.is_object() ? tool.get_object().if_contains("function") : nullptr;
    const auto* object = function != nullptr ? function->if_object() : nullptr;
    const auto* name = object != nullptr ? object->if_contains("name") : nullptr;
    const auto* schema = object != nullptr ? object->if_contains("parameters") : nullptr;
    if (name == nullptr || !name->is_string() || schema == nullptr || !schema->is_object())
      continue;
    const auto* properties = schema->get_object().if_contains("properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, value] : properties->get_object()) {
      const auto* type = value.is_object() ? value.get_object().if_contains("type") : nullptr;
      if (type != nullptr && type->is_array()) {  // of several the first that is not null
        const auto& kinds = type->get_array();
        const auto* first = std::find_if(kinds.begin(), kinds.end(), [](const json::value& kind) {
          return kind != json::value("null");
        });
        type = first == kinds.end() ? nullptr : first;
      }
      const bool has_forms = value.is_object() && value.get_object().contains("anyOf");
      const std::string kind = type != nullptr && type->is_string()
                                   ? json::value_to<std::string>(*type)
                                   : (has_forms ? "object" : "string");
      types_[{json::value_to<std::string>(*name), std::string(key)}] = lower(kind);
    }
  }
}

std::string ToolTypes::value(const std::string& function, const std::string& parameter,
                             std::string_view text) const {
  const auto found = types_.find({function, parameter});
  const std::string& type = found == types_.end() ? "string" : found->second;
  const std::string_view bare = trimmed(text);
  if (found != types_.end() && lower(bare) == "null") return "null";
  if (type.starts_with("int")) {
    if (auto number = number_text(bare, /*whole=*/true)) return *number;
  } else if (type.starts_with("num") || type.starts_with("float")) {
    if (auto number = number_text(bare, /*whole=*/false)) return *number;
  } else if (type.starts_with("bool")) {
    if (lower(bare) == "true" || lower(bare) == "false") return lower(bare);
  } else if (type != "string" && parse_json_text(bare)) {
    return std::string(bare);
  }
  return json_quoted(text);
}

const CallForm* find_call_form(const text::ChatTemplate& chat) {
  for (const CallForm& form : call_forms()) {
    if (chat.mentions(form.sign)) return &form;
  }
  return nullptr;
}

}  // namespace strata::server
