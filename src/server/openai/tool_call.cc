// SPDX-License-Identifier: Apache-2.0
// Forms: Qwen2.5 and Qwen3 (JSON in <tool_call>), Qwen3-Coder, Qwen3.5 and later (<function=...>,
// with or without <tool_call> around), Gemma 4, Mistral v3 to v13, DeepSeek-V3 to V3.1, DeepSeek-V4
// (DSML), Llama 3.1 and later.
#include "server/openai/tool_call.h"

#include <algorithm>
#include <boost/json.hpp>

#include "base/ascii.h"
#include "server/http/message.h"
#include "server/openai/gemma_call.h"
#include "server/openai/json_text.h"
#include "server/openai/schema_reference.h"

namespace strata::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kFence = "```json";
constexpr std::string_view kDeepSeekSep = "<\uff5ctool\u2581sep\uff5c>";

// Without the space that it begins with.
std::string_view without_leading_space(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
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

// A member of an object; null where there is none, or `of` is no object.
const json::value* member(const json::value* of, const char* key) {
  const auto* object = of == nullptr ? nullptr : of->if_object();
  return object == nullptr ? nullptr : object->if_contains(key);
}

// {"name": TEXT, "arguments" or "parameters": OBJECT}, and whatever else. The object may also stand
// in a string; where there is none it is {}.
std::optional<ToolCall> read_call_object(std::string_view text) {
  const std::optional<json::value> value = parse_json_text(text);
  if (!value) return std::nullopt;
  const json::value* name = member(&*value, "name");
  if (name == nullptr || !name->is_string() || name->get_string().empty()) return std::nullopt;
  ToolCall call{.name = json::value_to<std::string>(*name), .arguments = "{}"};
  for (const char* key : {"arguments", "parameters"}) {
    const json::value* arguments = member(&*value, key);
    if (arguments == nullptr || arguments->is_null()) continue;
    call.arguments = arguments->is_string() ? json::value_to<std::string>(*arguments)
                                            : std::string(json_member(text, key));
    if (!is_object(call.arguments)) return std::nullopt;
    break;
  }
  return call;
}

ToolCalls single_call(std::optional<ToolCall> call) {
  if (!call) return std::nullopt;
  return std::vector<ToolCall>{std::move(*call)};
}

// All of them, one at least; where one is no call, nothing.
ToolCalls read_call_objects(const std::vector<std::string_view>& texts) {
  std::vector<ToolCall> calls;
  for (const std::string_view text : texts) {
    std::optional<ToolCall> call = read_call_object(text);
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
  }
  return calls.empty() ? std::nullopt : ToolCalls(std::move(calls));
}

// <parameter=NAME> VALUE </parameter>, of which the end may be missing before the next.
std::optional<ToolParameter> take_function_parameter(std::string_view& text, bool is_last) {
  std::string_view rest = text;
  if (!take_until(rest, "<parameter=")) return std::nullopt;
  const std::optional<std::string_view> key = take_until(rest, ">");
  if (!key) return std::nullopt;
  size_t end = std::min(rest.find("</parameter>"), rest.find("<parameter="));
  if (end == std::string_view::npos) {
    if (!is_last) return std::nullopt;
    end = rest.size();
  }
  ToolParameter out = {std::string(trimmed(*key)),
                       std::string(without_breaks(rest.substr(0, end)))};
  text = rest.substr(end);
  return out;
}

// NAME> and parameters
ToolCalls read_function(std::string_view text, const ToolTypes& types) {
  const std::optional<std::string_view> name = take_until(text, ">");
  if (!name || trimmed(*name).empty()) return std::nullopt;
  const std::string function(trimmed(*name));
  JsonObject arguments;
  while (const auto parameter = take_function_parameter(text, /*is_last=*/true)) {
    arguments.add(parameter->name,
                  Json::written(types.value_json(function, parameter->name, parameter->text)));
  }
  return single_call(ToolCall{function, arguments.text()});
}

ToolCalls read_hermes(std::string_view inner, const ToolTypes&) {
  return single_call(read_call_object(trimmed(inner)));
}

// [{...}, ...] or NAME[CALL_ID]ID[ARGS]{...}, of which [CALL_ID]ID and [ARGS] may be missing.
ToolCalls read_mistral(std::string_view inner, const ToolTypes&) {
  const std::string_view text = trimmed(inner);
  if (text.starts_with('[') || text.starts_with("{\"")) {
    if (!parse_json_text(text)) return std::nullopt;
    return read_call_objects(text.front() == '[' ? json_items(text) : std::vector{text});
  }
  const size_t brace = text.find('{');
  if (brace == std::string_view::npos || !is_object(text.substr(brace))) return std::nullopt;
  const std::string_view head = text.substr(0, brace);
  const std::string_view name = trimmed(head.substr(0, head.find('[')));
  if (name.empty()) return std::nullopt;
  return single_call(ToolCall{std::string(name), std::string(text.substr(brace))});
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
  return single_call(ToolCall{std::string(name), std::string(arguments)});
}

// <DSML parameter name="NAME" string="true|false">VALUE</DSML parameter>
std::optional<ToolParameter> take_dsml_parameter(std::string_view& text, bool /*is_last*/) {
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
  while (const auto parameter = take_dsml_parameter(inner, /*is_last=*/true))
    arguments.add(parameter->name, Json::written(parameter->text));
  return single_call(ToolCall{std::string(*name), arguments.text()});
}

// Objects with semicolons between them.
ToolCalls read_llama(std::string_view inner, const ToolTypes&) {
  std::vector<ToolCall> calls;
  std::string_view text = trimmed(inner);
  while (!text.empty()) {
    const size_t end = json_value_end(text, 0);
    std::optional<ToolCall> call = read_call_object(text.substr(0, end));
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
    text = trimmed(text.substr(end));
    if (text.starts_with(';')) text = trimmed(text.substr(1));
  }
  return calls.empty() ? std::nullopt : ToolCalls(std::move(calls));
}

CallHead make_head(std::string_view name, size_t arguments) {
  CallHead head = {.name = std::string(name), .arguments = arguments};
  head.state = name.empty() ? CallHead::State::kNone : CallHead::State::kKnown;
  return head;
}

CallHead no_call() { return {.state = CallHead::State::kNone}; }

size_t offset_in(std::string_view text, std::string_view part) {
  return static_cast<size_t>(part.data() - text.data());
}

// A member whose value begins at `rest`, which then begins with the next one's key: nothing. Else
// what the head is, since it can be none, or more of it is to come.
std::optional<CallHead> read_head_member(std::string_view& rest, std::string_view key,
                                         std::string& name) {
  const size_t end = json_value_end(rest, 0);
  if (end == rest.size()) return CallHead{};
  const std::optional<json::value> value = parse_json_text(rest.substr(0, end));
  if (!value || (key == "\"name\"" && !value->is_string())) return no_call();
  if (key == "\"name\"") name = json::value_to<std::string>(*value);
  rest = without_leading_space(rest.substr(end));
  if (rest.empty()) return CallHead{};
  if (rest.front() != ',') return no_call();
  rest = without_leading_space(rest.substr(1));
  return std::nullopt;
}

// {"name": TEXT, ..., "arguments" or "parameters": {
CallHead read_object_head(std::string_view text) {
  std::string name;
  std::string_view rest = without_leading_space(text.substr(text.find('{') + 1));
  while (!rest.empty()) {
    if (rest.front() != '"') return no_call();
    const size_t key_end = json_value_end(rest, 0);
    const size_t colon = rest.find_first_not_of(kSpace, key_end);
    if (colon == std::string_view::npos) return {};
    const std::string_view key = rest.substr(0, key_end);
    rest = without_leading_space(rest.substr(colon + 1));
    if (rest.empty()) return {};
    if (key == "\"arguments\"" || key == "\"parameters\"") {
      CallHead head = make_head(rest.front() == '{' ? name : "", offset_in(text, rest));
      head.is_member = true;
      return head;
    }
    if (auto head = read_head_member(rest, key, name)) return *head;
  }
  return {};
}

CallHead read_json_head(std::string_view inner) {
  const std::string_view text = without_leading_space(inner);
  if (text.empty()) return {};
  return text.front() == '{' ? read_object_head(inner) : no_call();
}

CallHead read_function_head(std::string_view inner) {
  std::string_view rest = inner;
  const std::optional<std::string_view> name = take_until(rest, ">");
  if (!name) return {};
  CallHead head = make_head(trimmed(*name), offset_in(inner, rest));
  head.next = take_function_parameter;
  return head;
}

CallHead read_mistral_head(std::string_view inner) {
  const std::string_view text = without_leading_space(inner);
  if (text.empty()) return {};
  if (text.front() == '[' || text.front() == '{') return no_call();
  const size_t brace = inner.find('{');
  if (brace == std::string_view::npos) return {};
  return make_head(trimmed(text.substr(0, text.find_first_of("[{"))), brace);
}

CallHead read_deepseek_v3_head(std::string_view inner) {
  std::string_view rest = inner;
  const std::optional<std::string_view> head = take_until(rest, kDeepSeekSep);
  if (!head) return {};
  rest = without_leading_space(rest);
  if (rest.empty()) return {};
  if (rest.front() == '{') return make_head(trimmed(*head), offset_in(inner, rest));
  const std::optional<std::string_view> name = take_until(rest, kFence);
  rest = without_leading_space(rest);
  if (!name || rest.empty()) return {};
  return rest.front() == '{' ? make_head(trimmed(*name), offset_in(inner, rest)) : no_call();
}

CallHead read_dsml_head(std::string_view inner) {
  std::string_view rest = inner;
  if (!take_until(rest, "name=\"")) return {};
  const std::optional<std::string_view> name = take_until(rest, "\"");
  if (!name || !take_until(rest, ">")) return {};
  CallHead head = make_head(*name, offset_in(inner, rest));
  head.next = take_dsml_parameter;
  return head;
}

const std::vector<CallForm>& call_forms() {
  static const std::vector<CallForm> kForms = {
      {.sign = "<|tool_call>call:",
       .open = "<|tool_call>",
       .close = "<tool_call|>",
       .around = {},
       .inside = {kGemmaQuote},
       .read = read_gemma,
       .head = read_gemma_head,
       .writing = write_gemma,
       .in_text = {kGemmaQuote}},
      {.sign = "\uff5cDSML\uff5c",
       .open = "<\uff5cDSML\uff5cinvoke",
       .close = "</\uff5cDSML\uff5cinvoke>",
       .around = {"<\uff5cDSML\uff5ctool_calls>", "</\uff5cDSML\uff5ctool_calls>",
                  "<\uff5cDSML\uff5cfunction_calls>", "</\uff5cDSML\uff5cfunction_calls>"},
       .inside = {"\uff5cDSML\uff5c"},
       .read = read_dsml,
       .head = read_dsml_head,
       .writing = write_dsml,
       .in_text = {"\uff5cDSML\uff5c"}},
      {.sign = "<\uff5ctool\u2581call\u2581begin\uff5c>",
       .open = "<\uff5ctool\u2581call\u2581begin\uff5c>",
       .close = "<\uff5ctool\u2581call\u2581end\uff5c>",
       .around = {"<\uff5ctool\u2581calls\u2581begin\uff5c>",
                  "<\uff5ctool\u2581calls\u2581end\uff5c>"},
       .inside = {"<\uff5ctool\u2581sep\uff5c>"},
       .read = read_deepseek_v3,
       .head = read_deepseek_v3_head,
       .writing = write_deepseek_v3},
      {.sign = "[TOOL_CALLS]",
       .open = "[TOOL_CALLS]",
       .close = "",
       .around = {},
       .inside = {"[ARGS]", "[CALL_ID]"},
       .read = read_mistral,
       .head = read_mistral_head,
       .writing = write_mistral},
      {.sign = "<function=",
       .open = "<function=",
       .close = "</function>",
       .around = {"<tool_call>", "</tool_call>"},
       .inside = {},
       .read = read_function,
       .head = read_function_head,
       .writing = write_function},
      {.sign = "<tool_call>",
       .open = "<tool_call>",
       .close = "</tool_call>",
       .around = {},
       .inside = {},
       .read = read_hermes,
       .head = read_json_head,
       .writing = write_hermes},
      {.sign = "\"parameters\": ",
       .open = "",
       .close = "",
       .around = {"<|python_tag|>"},
       .inside = {},
       .read = read_llama,
       .head = read_json_head,
       .writing = write_llama},
  };
  return kForms;
}

// What some schemas call types.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"str", "string"},   {"int", "integer"}, {"float", "number"}, {"double", "number"},
    {"bool", "boolean"}, {"dict", "object"}, {"list", "array"}};

std::string schema_type_named(const json::value& name) {
  const std::string kind = lower(trimmed(json::value_to<std::string>(name)));
  const auto* of = std::ranges::find(kAliases, kind, [](const auto& alias) { return alias.first; });
  return of == std::end(kAliases) ? kind : std::string(of->second);
}

std::string json_type_of(const json::value& value) {
  if (value.is_null()) return "null";
  if (value.is_bool()) return "boolean";
  if (value.is_double()) return "number";
  if (value.is_number()) return "integer";
  if (value.is_array()) return "array";
  return value.is_object() ? "object" : "string";
}

// What a request's tools may cost behind references, where one text is read as often as it is
// named.
constexpr int64_t kMostSteps = 100'000;  // schemas, of all tools together
constexpr int kMostReferences = 16;      // that lead to one

// All types that a schema names, as vLLM finds them: by its type, the values of its enum, and the
// schemas that it combines; and behind references, which vLLM does not follow.
class SchemaTypes {
 public:
  SchemaTypes(const json::value& root, int64_t& steps_left, std::set<std::string>& kinds)
      : root_(root), steps_left_(steps_left), kinds_(kinds) {}

  void add(const json::value& of, int references = 0) {
    const json::value& schema = follow_references(of, root_);
    if (&schema != &of) ++references;
    // A schema that leads back to itself names nothing new.
    const bool is_done = references > kMostReferences ||
                         (references > 0 && (--steps_left_ < 0 || !seen_.insert(&schema).second));
    if (is_done) return;
    const auto each = [&](const char* key, const auto& take) {
      const json::value* list = member(&schema, key);
      if (list == nullptr || !list->is_array()) return;
      for (const json::value& item : list->get_array()) take(item);
    };
    const auto add_name = [&](const json::value& name) {
      if (name.is_string()) kinds_.insert(schema_type_named(name));
    };
    if (const json::value* type = member(&schema, "type")) add_name(*type);
    each("type", add_name);
    each("enum", [&](const json::value& value) { kinds_.insert(json_type_of(value)); });
    for (const char* key : {"anyOf", "oneOf", "allOf"})
      each(key, [&](const json::value& one) { add(one, references); });
  }

 private:
  const json::value& root_;
  int64_t& steps_left_;
  std::set<std::string>& kinds_;
  std::set<const json::value*> seen_;  // behind references
};

// true, false or null, in any case; of a boolean also 1 and 0.
std::optional<std::string> read_as_word(std::string_view kind, std::string_view text) {
  std::string bare = lower(trimmed(text));
  if (kind == "boolean" && (bare == "1" || bare == "0")) bare = bare == "1" ? "true" : "false";
  const std::optional<json::value> value = parse_json_text(bare);
  return value && json_type_of(*value) == kind ? std::optional(bare) : std::nullopt;
}

// The text as JSON of this type, or nothing.
std::optional<std::string> read_as_type(std::string_view kind, std::string_view text) {
  if (kind == "string") return json_quoted(text);
  if (kind == "boolean" || kind == "null") return read_as_word(kind, text);
  const std::string bare(trimmed(text));
  const std::optional<json::value> value = parse_json_text(bare);
  if (!value) return std::nullopt;
  if (kind != "integer" && kind != "number") return bare;
  // Whole numbers as they are written: some have more than 64 bits.
  const bool is_whole = bare.find_first_not_of("-0123456789") == std::string::npos;
  return value->is_number() && (is_whole || kind == "number") ? std::optional(bare) : std::nullopt;
}

}  // namespace

ToolTypes::ToolTypes(std::string_view tools) {
  const std::optional<json::value> list = parse_json_text(tools);
  if (!list || !list->is_array()) return;
  int64_t steps_left = kMostSteps;
  for (const json::value& tool : list->get_array()) {
    const json::value* function = member(&tool, "function");
    const json::value* name = member(function, "name");
    const json::value* parameters = member(function, "parameters");
    const json::value* properties = member(parameters, "properties");
    if (name == nullptr || !name->is_string() || properties == nullptr || !properties->is_object())
      continue;
    for (const auto& [key, value] : properties->get_object()) {
      std::set<std::string>& kinds = types_[{json::value_to<std::string>(*name), std::string(key)}];
      SchemaTypes(*parameters, steps_left, kinds).add(value);
    }
  }
}

std::string ToolTypes::value_json(const std::string& function, const std::string& parameter,
                                  std::string_view text) const {
  const auto found = types_.find({function, parameter});
  if (found == types_.end() || found->second.empty()) return json_quoted(text);
  for (const char* kind : {"null", "integer", "number", "boolean", "object", "array", "string"}) {
    if (!found->second.contains(kind)) continue;
    if (auto value = read_as_type(kind, text)) return *value;
  }
  const std::string_view bare = trimmed(text);
  return parse_json_text(bare) ? std::string(bare) : json_quoted(text);
}

const CallForm* find_call_form(const text::ChatTemplate& chat) {
  for (const CallForm& form : call_forms()) {
    if (chat.mentions(form.sign)) return &form;
  }
  return nullptr;
}

}  // namespace strata::server
