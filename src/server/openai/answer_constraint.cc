// SPDX-License-Identifier: Apache-2.0
#include "server/openai/answer_constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>
#include <vector>

#include "server/openai/openai_error.h"
#include "server/openai/sampling_fields.h"
#include "server/openai/tool_grammar.h"
#include "structured/json_schema.h"

namespace strata::server {
namespace {

namespace json = boost::json;
using structured::GrammarKind;

constexpr const char* kAnyObject = R"({"type": "object"})";
constexpr const char* kNoArguments =
    R"({"type": "object", "properties": {}, "additionalProperties": false})";

// A schema of the body, as checked text; what it passes over, where it is lenient, is added.
std::string read_schema(const std::string& text, const std::string& param, bool is_strict,
                        std::vector<std::string>* warnings) {
  try {
    if (is_strict) structured::check_strict_schema(text, param);
    structured::CheckedSchema checked = structured::check_json_schema(text, param, !is_strict);
    if (warnings != nullptr)
      warnings->insert(warnings->end(), checked.warnings.begin(), checked.warnings.end());
    return checked.text;
  } catch (const Error& error) {
    throw OpenAiFault(ErrorCode::kInvalidArgument, error.what(), param, "invalid_schema");
  }
}

AnswerConstraint schema_constraint(std::string schema, const std::string& param, bool is_strict) {
  AnswerConstraint out = {.source = {}, .param = param};
  // What it passes over is left to the compile, which passes the same over and says so.
  read_schema(schema, param, is_strict, nullptr);
  out.source.text = std::move(schema);
  out.source.is_lenient = !is_strict;
  return out;
}

std::optional<AnswerConstraint> read_response_format(const text::Fields& body) {
  if (!body.has("response_format")) return std::nullopt;
  const text::Fields format = body.object("response_format");
  const std::string type = format.string("type");
  if (type == "text") return std::nullopt;
  if (type == "json_object")
    return AnswerConstraint{.source = {.text = kAnyObject}, .param = "response_format"};
  if (type != "json_schema") {
    refuse_parameter("response_format",
                     fmt::format("'{}' is not supported, only text, json_object and json_schema",
                                 type.substr(0, 100)));
  }
  const text::Fields of = format.object("json_schema");
  static_cast<void>(of.string("name"));
  const json::value* schema = of.find("schema");
  return schema_constraint(schema == nullptr ? "{}" : json::serialize(*schema),
                           "response_format.json_schema.schema", of.boolean_or("strict", false));
}

AnswerConstraint choice_constraint(const text::Fields& of) {
  const std::vector<std::string> choices = of.strings("choice");
  if (choices.empty() || choices.size() > structured::kMaxSchemaEnumValues)
    of.fail("choice", fmt::format("has {} texts, wanted 1 to {}", choices.size(),
                                  structured::kMaxSchemaEnumValues));
  json::array formats;
  for (const std::string& choice : choices)
    formats.push_back(json::object{{"type", "const_string"}, {"value", choice}});
  return {.source = {.kind = GrammarKind::kTags,
                     .text = json::serialize(json::object{
                         {"type", "structural_tag"},
                         {"format", json::object{{"type", "or"}, {"elements", formats}}}})},
          .param = "structured_outputs.choice"};
}

AnswerConstraint json_constraint(const text::Fields& of) {
  constexpr const char* kParam = "structured_outputs.json";
  const json::value& value = *of.find("json");
  return schema_constraint(
      value.is_string() ? json::value_to<std::string>(value) : json::serialize(value), kParam,
      /*is_strict=*/false);
}

AnswerConstraint rules_constraint(const text::Fields& of) {
  AnswerConstraint out = {.source = {.kind = GrammarKind::kEbnf, .text = of.string("grammar")},
                          .param = "structured_outputs.grammar"};
  if (out.source.text.find("::=") == std::string::npos) {
    refuse_parameter(out.param,
                     "has no rule with ::=; Lark is not supported, write EBNF whose first rule is "
                     "root ::= ...");
  }
  return out;
}

std::optional<AnswerConstraint> read_structured_outputs(const text::Fields& body) {
  if (!body.has("structured_outputs")) return std::nullopt;
  const text::Fields of = body.object("structured_outputs");
  std::vector<std::string> asked;
  of.each_name([&](const std::string& name) {
    static constexpr std::string_view kKnown[] = {"json", "regex", "choice", "grammar",
                                                  "json_object"};
    if (std::ranges::find(kKnown, name) == std::end(kKnown)) {
      refuse_parameter(
          "structured_outputs." + name.substr(0, 100),
          "is not supported, only json, regex, choice, grammar (EBNF) and json_object");
    }
    asked.push_back(name);
  });
  if (asked.size() != 1)
    body.fail("structured_outputs", fmt::format("names {} of json, regex, choice, grammar and "
                                                "json_object, wanted one",
                                                asked.size()));
  if (asked[0] == "json") return json_constraint(of);
  if (asked[0] == "choice") return choice_constraint(of);
  if (asked[0] == "grammar") return rules_constraint(of);
  if (asked[0] == "regex")
    return AnswerConstraint{.source = {.kind = GrammarKind::kRegex, .text = of.string("regex")},
                            .param = "structured_outputs.regex"};
  if (!of.boolean_or("json_object", false)) return std::nullopt;
  return AnswerConstraint{.source = {.text = kAnyObject},
                          .param = "structured_outputs.json_object"};
}

struct ReadTools {
  std::vector<GrammarTool> tools = {};
  bool is_any_strict = false;
};

// The tools that the choice lets a model call.
ReadTools read_grammar_tools(const text::Fields& body, const ToolChoice& choice,
                             std::vector<std::string>& warnings) {
  ReadTools out;
  size_t index = 0;
  body.each_object("tools", [&](const text::Fields& tool) {
    const std::string param = fmt::format("tools[{}].function.parameters", index++);
    const text::Fields function = tool.object("function");
    const std::string name = function.string("name");
    if (!choice.name.empty() && choice.name != name) return;
    if (!is_bare_name(name))
      function.fail("name",
                    "has other characters than a-z, A-Z, 0-9, _, - and ., so no grammar is "
                    "made of its calls");
    const bool is_strict = function.boolean_or("strict", false);
    out.is_any_strict = out.is_any_strict || is_strict;
    const json::value* schema = function.find("parameters");
    const bool has_schema = schema != nullptr && !schema->is_null();
    out.tools.push_back(
        {.name = name,
         .schema = has_schema ? read_schema(json::serialize(*schema), param, is_strict, &warnings)
                              : kNoArguments,
         .param = param,
         .is_strict = is_strict});
  });
  return out;
}

// Refuses the field in a build that has no grammars.
void require_grammars_for(const std::string& param) {
  try {
    structured::require_grammars();
  } catch (const Error& error) {
    refuse_parameter(param, error.what());
  }
}

void check_calls_are_known(const AnswerOrder& order, const std::string& param) {
  if (order.form.writes_calls()) return;
  refuse_parameter(param,
                   "this model's chat template has no calls of tools that grammars are made for");
}

// The schema as a part of a larger grammar has it, which passes over nothing itself.
std::string schema_text(const AnswerConstraint& of, std::vector<std::string>& warnings) {
  if (!of.source.is_lenient) return of.source.text;
  structured::CheckedSchema checked =
      structured::check_json_schema(of.source.text, of.param, /*is_lenient=*/true);
  warnings.insert(warnings.end(), checked.warnings.begin(), checked.warnings.end());
  return checked.text;
}

// What the last message of an answer in channels fits: the format, or a call of the tools, or
// either.
void constrain_channels(const ServedText& text, const CallsGrammar& calls, bool has_to_call,
                        const std::optional<AnswerConstraint>& format, AnswerOrder& order) {
  AnswerConstraint out = {.source = {},
                          .param = calls.tools.empty() ? format->param
                                   : has_to_call       ? "tool_choice"
                                                       : "tools"};
  require_grammars_for(out.param);
  std::optional<structured::GrammarSource> answer;
  if (format && !has_to_call) {
    answer = format->source;
    if (!calls.or_schema.empty()) {
      answer->text = calls.or_schema;
    } else if (answer->kind == GrammarKind::kJsonSchema) {
      answer->text = schema_text(*format, order.warnings);
    }
  }
  out.source = make_channels_source(text, calls, answer ? &*answer : nullptr, order.warnings);
  order.constraint = std::move(out);
}

}  // namespace

ToolChoice read_tool_choice(const text::Fields& body) {
  using enum ToolChoice::Kind;
  if (!body.has("tool_choice")) return {};
  if (body.is_string("tool_choice")) {
    const std::string choice = body.string("tool_choice");
    if (choice == "auto") return {kAuto};
    if (choice == "none") return {kNone};
    if (choice == "required") return {kRequired};
    refuse_parameter("tool_choice",
                     fmt::format("'{}' is not supported, only auto, none, required and a function",
                                 choice.substr(0, 100)));
  }
  const text::Fields of = body.object("tool_choice");
  const std::string type = of.string("type");
  if (type != "function") {
    refuse_parameter("tool_choice", fmt::format("the type '{}' is not supported, only 'function'",
                                                type.substr(0, 100)));
  }
  return {kNamed, of.object("function").string("name")};
}

std::optional<AnswerConstraint> read_format_constraint(const text::Fields& body) {
  std::optional<AnswerConstraint> out = read_response_format(body);
  std::optional<AnswerConstraint> other = read_structured_outputs(body);
  if (out && other) body.fail("structured_outputs", "stands next to response_format, wanted one");
  if (other) out = std::move(other);
  if (out) require_grammars_for(out->param);
  return out;
}

void read_chat_constraint(const text::Fields& body, const ServedText& text, AnswerOrder& order) {
  using enum ToolChoice::Kind;
  std::optional<AnswerConstraint> format = read_format_constraint(body);
  const ToolChoice choice = read_tool_choice(body);
  const bool has_to_call = choice.kind == kRequired || choice.kind == kNamed;
  ReadTools tools;
  if (order.types != nullptr && (has_to_call || order.form.writes_calls())) {
    std::vector<std::string> warnings;
    bool reads_all = has_to_call || format.has_value();
    if (!reads_all)
      body.each_object("tools", [&](const text::Fields& tool) {
        reads_all = reads_all || tool.object("function").boolean_or("strict", false);
      });
    if (reads_all) {
      tools = read_grammar_tools(body, choice, warnings);
      order.warnings = std::move(warnings);
    }
  }
  if (has_to_call && tools.tools.empty())
    body.fail("tool_choice", choice.name.empty() ? "wants a call, and there are no tools"
                                                 : fmt::format("no tool is called '{}'",
                                                               choice.name.substr(0, 100)));
  const bool is_schema = format && format->source.kind == GrammarKind::kJsonSchema;
  CallsGrammar calls = {.tools = std::move(tools.tools)};
  if (has_to_call) {
    check_calls_are_known(order, "tool_choice");
    if (choice.kind == kNamed) order.most_calls = 1;
  } else if (calls.tools.empty() || !(tools.is_any_strict || is_schema)) {
    calls.tools.clear();
  } else if (is_schema) {
    calls.or_schema = schema_text(*format, order.warnings);
  } else if (format) {
    calls.tools.clear();  // what else it has to fit has no calls in it
  } else {
    calls.begins_free = true;
  }
  if (order.form.has_channels) {
    if (format || !calls.tools.empty()) constrain_channels(text, calls, has_to_call, format, order);
    return;
  }
  if (!calls.tools.empty()) {
    calls.may_repeat = order.most_calls > 1;
    format = {.source = make_calls_source(text, order.form, calls, order.warnings),
              .param = has_to_call ? "tool_choice" : "tools"};
  }
  if (!format) return;
  require_grammars_for(format->param);
  if (order.in_reasoning && format->source.lead_mark.empty()) {
    format->source.lead_mark = order.form.think_end;
    format->source.may_begin_with_breaks = true;
  }
  order.constraint = std::move(format);
}

}  // namespace strata::server
