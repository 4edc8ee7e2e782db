// SPDX-License-Identifier: Apache-2.0
// Calls of tools as vLLM's parsers read them (tools/golden/make_tool_calls.py), and where we read
// otherwise: each difference stands here, with its reason.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <string>
#include <utility>

#include "base/files.h"
#include "server/openai/answer_parser.h"
#include "server/openai/json_text.h"

namespace strata::server {
namespace {

namespace json = boost::json;

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first));
}

std::string sorted_text(const json::value& value);

// Arguments as JSON has them, members in order of their names: how they are spaced says nothing.
std::string sorted_object(const json::object& object) {
  std::map<std::string, std::string> members;
  for (const auto& [key, value] : object) members[std::string(key)] = sorted_text(value);
  std::string out;
  for (const auto& [key, value] : members) out += (out.empty() ? "" : ",") + key + ":" + value;
  return "{" + out + "}";
}

std::string sorted_text(const json::value& value) {
  if (const auto* object = value.if_object()) return sorted_object(*object);
  if (const auto* array = value.if_array()) {
    std::string out;
    for (const json::value& item : *array) out += (out.empty() ? "" : ",") + sorted_text(item);
    return "[" + out + "]";
  }
  return json::serialize(value);
}

// NAME(ARGUMENTS) for each call, behind what is content.
std::string said(std::string_view content,
                 const std::vector<std::pair<std::string, std::string>>& calls) {
  std::string out = trimmed(content);
  for (const auto& [name, arguments] : calls) {
    const auto value = parse_json_text(arguments);
    out += " | " + name + "(" + (value ? sorted_text(*value) : arguments) + ")";
  }
  return out;
}

std::string read_in_steps(const AnswerForm& form, const ToolTypes& types, const std::string& text,
                          size_t step) {
  AnswerParser parser(form, {.types = &types});
  AnswerPiece all;
  const auto add = [&all](AnswerPiece piece) {
    all.content += piece.content;
    append_call_pieces(all.calls, std::move(piece.calls));
  };
  for (size_t i = 0; i < text.size(); i += step)
    add(parser.push(std::string_view(text).substr(i, step)));
  add(parser.finish());
  std::vector<std::pair<std::string, std::string>> calls;
  for (const ToolCall& call : all.calls) calls.emplace_back(call.name, call.arguments);
  return said(all.content, calls);
}

std::string want_of(const json::object& row) {
  std::vector<std::pair<std::string, std::string>> calls;
  for (const json::value& call : row.at("calls").as_array()) {
    calls.emplace_back(json::value_to<std::string>(call.as_array()[0]),
                       json::value_to<std::string>(call.as_array()[1]));
  }
  const json::value& content = row.at("content");
  return said(content.is_null() ? "" : json::value_to<std::string>(content), calls);
}

AnswerForm form_named(const std::string& name) {
  if (name.empty()) return answer_form_of(text::ChatTemplate::parse("</think>\uff5cDSML\uff5c"));
  if (name == "gemma4")
    return answer_form_of(
        text::ChatTemplate::parse("<|tool_call>call:<|channel>thought<channel|>"));
  const std::string folder = STRATA_SOURCE_DIR "/tests/data/third_party/templates/";
  return answer_form_of(text::ChatTemplate::parse(read_file(folder + name + ".jinja", 1 << 20)));
}

// Why we read otherwise.
constexpr const char* kTold =
    "a stream tells a call from its name on, so whatever follows is its arguments, to their end or "
    "the end mark: whole answers are read alike";
constexpr const char* kBehind = "text behind a call is content, as it is in a stream";
constexpr const char* kEach = "each call is read by itself: what is none takes back no other";
constexpr const char* kObject =
    "arguments are an object: none, null and the text of an object are read as one";
constexpr const char* kStrict = "a call has a name, and arguments that are an object";
constexpr const char* kText = "what is no call stays content";
constexpr const char* kWhole =
    "calls are the whole answer, as they are in vLLM's stream, else every object in a text is one";
constexpr const char* kAsWritten = "numbers stay as the model wrote them: -1.5e3";
constexpr const char* kBare =
    "what has no quotes is what JSON reads it as, also in lists and objects";
constexpr const char* kLines = "vLLM's pattern loses arguments on several lines";
constexpr const char* kAround = "the marks of the call itself are enough";

struct Difference {
  std::string ours;
  std::string why;
};
using Differences = std::map<std::pair<std::string, std::string>, Difference>;

const Differences& differences() {
  static const Differences kAll = {
      {{"hermes", "arguments that are cut"}, {" | weather({\"city\": \"Par)", kTold}},
      {{"hermes", "an end mark that is cut"}, {" | weather({city:\"Paris\"})", kTold}},
      {{"hermes", "text behind"}, {"That was it. | weather({city:\"Paris\"})", kBehind}},
      {{"hermes", "text between"}, {"and | weather({city:\"Paris\"}) | now({})", kBehind}},
      {{"hermes", "no arguments"}, {" | now({})", kObject}},
      {{"hermes", "arguments of null"}, {" | now({})", kObject}},
      {{"hermes", "arguments of a list"},
       {"<tool_call>\n{\"name\": \"now\", \"arguments\": [1]}\n</tool_call>", kStrict}},
      {{"hermes", "arguments as a string"}, {" | weather({city:\"Paris\"})", kObject}},
      {{"hermes", "an empty name"},
       {"<tool_call>\n{\"name\": \"\", \"arguments\": {}}\n</tool_call>", kStrict}},
      {{"hermes", "a comma too many"}, {" | weather({\"city\": \"Paris\",})", kTold}},
      {{"hermes", "a brace too many"}, {" | now({})", kTold}},
      {{"hermes", "a brace too few"}, {" | now({})", kTold}},
      {{"hermes", "the second is no JSON"},
       {"<tool_call>\nno\n</tool_call> | weather({city:\"Paris\"})", kEach}},
      {{"hermes", "the first is no JSON"},
       {"<tool_call>\nno\n</tool_call> | weather({city:\"Paris\"})", kEach}},
      {{"hermes", "an end mark in a string"},
       {"\"}}\n</tool_call> | weather({\"city\": \")", kTold}},
      {{"qwen3_coder", "text behind"}, {"That was it. | weather({city:\"Paris\"})", kBehind}},
      {{"qwen3_coder", "a value that is cut"}, {" | weather({city:\"Par\"})", kTold}},
      {{"qwen3_coder", "a name that is cut"}, {"<function=weat", kStrict}},
      {{"qwen3_coder", "JSON between the marks"},
       {"{\"name\": \"now\", \"arguments\": {}}", kText}},
      {{"llama3_json", "arguments that are cut"}, {" | weather({\"city\": \"Par)", kTold}},
      {{"llama3_json", "text before"},
       {"I look. {\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}", kWhole}},
      {{"llama3_json", "text behind"}, {"That was it. | weather({city:\"Paris\"})", kBehind}},
      {{"llama3_json", "no parameters"}, {" | now({})", kObject}},
      {{"llama3_json", "a comma too many"}, {" | weather({\"city\": \"Paris\",})", kTold}},
      {{"llama3_json", "a brace too few"}, {" | now({})", kTold}},
      {{"llama3_json", "the second is no JSON"}, {"{no} | weather({city:\"Paris\"})", kEach}},
      {{"mistral", "arguments: nested"},
       {" | weather({exact:true,share:-1.5E3,where:{a:[1,{b:null}],c:{}}})", kAsWritten}},
      {{"mistral", "no arguments"}, {"[TOOL_CALLS]now", kStrict}},
      {{"mistral_list", "arguments that are cut"},
       {"[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Par", kText}},
      {{"mistral_list", "no JSON"}, {"[TOOL_CALLS] [no]", kText}},
      {{"deepseek_v3", "arguments: on lines"}, {" | weather({city:\"Paris\",days:3})", kLines}},
      {{"deepseek_v3", "arguments that are cut"}, {" | weather({\"city\": \"Par)", kTold}},
      {{"deepseek_v3", "no marks around"}, {" | now({})", kAround}},
      {{"deepseek_v31", "arguments: on lines"}, {" | weather({city:\"Paris\",days:3})", kLines}},
      {{"deepseek_v31", "arguments that are cut"}, {" | weather({\"city\": \"Par)", kTold}},
      {{"deepseek_v31", "no marks around"}, {" | now({})", kAround}},
      {{"gemma4", "of every type"},
       {" | weather({city:\"Paris\",days:3,exact:true,share:5E-1,tags:[\"a\",1],"
        "where:{a:{b:\"}\"}}})",
        kBare}},
      {{"gemma4", "nested"},
       {" | weather({tags:[[],[\"]\",{}]],where:{a:[1,{b:null}],c:{}}})", kBare}},
      {{"gemma4", "a key of several words"},
       {" | weather({where:{na\u00efve:\"x\",two words:1}})", kBare}},
      {{"gemma4", "a number with an exponent"}, {" | weather({share:1E3})", kAsWritten}},
      {{"gemma4", "text behind"}, {"That was it. | weather({city:\"Paris\"})", kBehind}},
      {{"gemma4", "a name that is cut"}, {"<|tool_call>call:weat", kStrict}},
      {{"gemma4", "no brace"}, {"<|tool_call>call:now<tool_call|>", kStrict}},
      {{"gemma4", "no name"}, {"<|tool_call>call:{}<tool_call|>", kStrict}},
      {{"gemma4", "no call"}, {"<|tool_call>now{}<tool_call|>", kText}},
  };
  return kAll;
}

TEST(ToolCalls, AreThoseOfVllmsParsers) {
  const std::string path = STRATA_SOURCE_DIR "/tests/server/openai/tool_calls.json";
  const json::value golden = json::parse(read_file(path, 1 << 20));
  const ToolTypes types(json::serialize(golden.at("tools")));
  size_t num_same = 0, num_other = 0;
  for (const json::value& entry : golden.at("families").as_array()) {
    const auto family = json::value_to<std::string>(entry.at("family"));
    const AnswerForm form = form_named(json::value_to<std::string>(entry.at("template")));
    for (const json::value& row : entry.at("cases").as_array()) {
      const auto name = json::value_to<std::string>(row.at("case"));
      const auto text = json::value_to<std::string>(row.at("text"));
      SCOPED_TRACE(family + ", " + name + ": " + text);
      const std::string want = want_of(row.as_object());
      const std::string got = read_in_steps(form, types, text, text.size());
      for (const size_t step : {1, 3, 7})
        EXPECT_EQ(read_in_steps(form, types, text, step), got) << "in steps of " << step;
      const auto difference = differences().find({family, name});
      if (difference == differences().end()) {
        EXPECT_EQ(got, want);
        ++num_same;
      } else {
        EXPECT_EQ(got, difference->second.ours) << difference->second.why;
        EXPECT_NE(got, want) << "is no difference any more";
        ++num_other;
      }
    }
  }
  EXPECT_EQ(num_other, differences().size());
  EXPECT_GT(num_same, 150u);
}

}  // namespace
}  // namespace strata::server
