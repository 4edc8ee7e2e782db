// SPDX-License-Identifier: Apache-2.0
#include "server/openai/chat_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <initializer_list>

#include "server/openai/answer_constraint.h"
#include "server/openai/body_fields.h"
#include "server/openai/openai_error.h"
#include "server/openai/sampling_fields.h"
#include "text/conversation.h"

namespace strata::server {
namespace {

namespace json = boost::json;

constexpr size_t kMostTools = 512;
constexpr size_t kMostName = 256;  // bytes of a tool's
// What a conversation takes on its way to a prompt, of each byte of its texts and of each value: as
// JSON, as its text, as the template's values, and as what the template makes of them (the tests
// measure it). And what is kept of tools, of each value.
constexpr size_t kTextBytes = 10;
constexpr size_t kValueBytes = 320;
constexpr size_t kEscaped = 5;  // bytes more, of a character that JSON writes as \u001f
constexpr size_t kTypeBytes = 512;

json::string text_of(const std::string& text) { return json::string(text.data(), text.size()); }

struct JsonSize {
  size_t bytes = 0;
  size_t values = 0;
};

// `in_text`: it is JSON, of which more values will be made.
void add_text_size(const json::string& text, bool in_text, JsonSize& size) {
  const auto count = [&](auto is) { return static_cast<size_t>(std::ranges::count_if(text, is)); };
  size.bytes += text.size() + kEscaped * count([](char c) { return c > 0 && c < ' '; });
  if (in_text)
    size.values += count([](char c) { return c == ',' || c == ':' || c == '[' || c == '{'; });
}

bool is_in(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Whether the content of a message is the JSON text of calls (text/conversation.h).
bool has_calls_as_content(const json::object& message) {
  return std::ranges::any_of(std::initializer_list<const char*>{"role", "from"}, [&](auto name) {
    const json::value* role = message.if_contains(name);
    return role != nullptr && role->is_string() &&
           is_in(std::string_view(role->get_string()), {"function_call", "tool_call"});
  });
}

// `in_text`: a text is that of JSON.
void add_json_size(const json::value& value, bool in_text, JsonSize& size) {
  ++size.values;
  if (value.is_string()) {
    add_text_size(value.get_string(), in_text, size);
  } else if (value.is_array()) {
    for (const json::value& item : value.get_array()) add_json_size(item, in_text, size);
  } else if (value.is_object()) {
    const bool is_calls = has_calls_as_content(value.get_object());
    for (const auto& field : value.get_object()) {
      const std::string_view name = field.key();
      size.bytes += name.size();
      ++size.values;
      const bool holds_json =
          is_in(name, {"arguments", "parameters", "input", "tool_calls", "function_call"}) ||
          (is_calls && is_in(name, {"content", "value"}));
      add_json_size(field.value(), holds_json, size);
    }
  }
}

size_t conversation_bytes(const JsonSize& texts, const JsonSize& tools) {
  return (texts.bytes + tools.bytes) * kTextBytes + (texts.values + tools.values) * kValueBytes;
}

JsonSize json_size_of(const text::Fields& body, std::initializer_list<const char*> names) {
  JsonSize size;
  for (const char* name : names)
    if (const json::value* value = body.find(name)) add_json_size(*value, /*in_text=*/false, size);
  return size;
}

void check_tool(const text::Fields& tool) {
  const std::string type = tool.string("type");
  if (type != "function") {
    tool.fail("type", fmt::format("'{}' is not supported, only 'function'", type.substr(0, 100)));
  }
  const text::Fields function = tool.object("function");
  const std::string name = function.string("name");
  if (name.empty() || name.size() > kMostName) {
    function.fail("name", fmt::format("has {} bytes, wanted 1 to {}", name.size(), kMostName));
  }
  static_cast<void>(function.boolean_or("strict", false));
  if (function.has("parameters")) static_cast<void>(function.object("parameters"));
}

// Once they are known to be functions.
std::string read_tools_as_json(const text::Fields& body) {
  size_t count = 0;
  body.each_object("tools", [&](const text::Fields& tool) {
    if (++count > kMostTools) {
      body.fail("tools", fmt::format("has more than {} items", kMostTools));
    }
    check_tool(tool);
  });
  if (count == 0) return "";
  return json::serialize(text::normalized_tools(*body.find("tools"), "tools"));
}

void read_reasoning_effort(const text::Fields& body, const ServedText& text, json::object& vars) {
  if (!body.has("reasoning_effort")) return;
  if (!text.chat->mentions("reasoning_effort")) {
    refuse_parameter("reasoning_effort", "this model's chat template has no such variable");
  }
  vars["reasoning_effort"] = text_of(body.string("reasoning_effort"));
}

json::object read_template_vars(const text::Fields& body, const ServedText& text) {
  json::object vars;
  if (body.has("chat_template_kwargs")) {
    static_cast<void>(body.object("chat_template_kwargs"));
    vars = body.find("chat_template_kwargs")->get_object();
  }
  read_reasoning_effort(body, text, vars);
  return vars;
}

std::string render_prompt(const ServedText& text, const text::ChatRequest& request) {
  try {
    return text.chat->render(request);
  } catch (const Error& error) {
    throw OpenAiFault(ErrorCode::kInvalidArgument, fmt::format("messages: {}", error.what()),
                      "messages", "");
  }
}

void read_logprob_options(const text::Fields& body, OutputOptions& telling) {
  telling.logprobs = body.boolean_or("logprobs", false);
  telling.top_logprobs = body.integer_or("top_logprobs", 0, 0, kMostTopLogprobs);
  if (telling.top_logprobs > 0 && !telling.logprobs) {
    body.fail("top_logprobs", "needs logprobs: true");
  }
}

std::optional<int64_t> read_max_tokens(const text::Fields& body) {
  std::optional<int64_t> most;
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (!body.has(name)) continue;
    const int64_t value = body.integer(name, 1, INT64_MAX);
    if (most && *most != value) body.fail(name, "says another number than max_tokens");
    most = value;
  }
  return most;
}

}  // namespace

text::ChatRequest read_conversation(const text::Fields& body, const ServedText& text) {
  text::ChatRequest request;
  text::ConversationReader messages(text.chat->conversation_form());
  body.each_object("messages", [&](const text::Fields& message) { messages.add(message); });
  if (messages.empty()) body.fail("messages", "wanted at least one message");
  request.messages = json::serialize(messages.take());
  const bool may_call = read_tool_choice(body).kind != ToolChoice::Kind::kNone;
  if (body.has("tools")) {
    const std::string tools = read_tools_as_json(body);
    if (may_call) request.tools = tools;
  }
  const json::object vars = read_template_vars(body, text);
  request.vars = text::joined_vars(text.vars, vars.empty() ? "" : json::serialize(vars));
  request.add_generation_prompt = true;
  return request;
}

// The prompt; what is kept of the tools goes into the order.
static std::string read_prompt_and_tools(const text::Fields& body, const ServedText& text,
                                         const JsonSize& tools, AnswerOrder& order) {
  const text::ChatRequest request = read_conversation(body, text);
  std::string prompt = render_prompt(text, request);
  if (request.tools.empty()) return prompt;
  order.types = std::make_shared<const ToolTypes>(request.tools);
  order.kept = tools.bytes + tools.values * kTypeBytes;
  return prompt;
}

static std::vector<int32_t> encode_chat_prompt(const ServedText& text, const api::BaseInfo& base,
                                               const std::string& prompt, size_t kept,
                                               const TakeMemory& take) {
  return encode_prompt(text, base, prompt, "messages", /*add_special=*/false, [&](size_t bytes) {
    if (take) take(kept + prompt.capacity() + bytes);
  });
}

static void check_chat_supported(const text::Fields& body, const ServedText& text) {
  if (!text.chat) {
    throw OpenAiFault(ErrorCode::kInvalidArgument,
                      "model: it has no chat template; ask /v1/completions for it", "model",
                      "unsupported_model");
  }
  for (const char* name : {"functions", "function_call"}) {
    if (body.has(name)) refuse_parameter(name, "is not supported; use tools");
  }
  check_fields(body, /*is_chat=*/true);
  refuse_unsupported_values(body);
}

AnswerOrder read_chat(const text::Fields& body, const ServedText& text, const api::BaseInfo& base,
                      uint64_t fallback_seed, const TakeMemory& take) {
  check_chat_supported(body, text);
  AnswerOrder order;
  order.is_chat = true;
  order.telling = read_stream_options(body);
  read_logprob_options(body, order.telling);
  order.form = answer_form_of(*text.chat);
  api::Sample& sample = order.samples.emplace_back();
  read_sampling(body, text, base, fallback_seed, sample);
  if (text.turn_end) sample.stop.push_back(*text.turn_end);
  const JsonSize texts = json_size_of(body, {"messages", "chat_template_kwargs"});
  const JsonSize tools = json_size_of(body, {"tools"});
  if (take) take(conversation_bytes(texts, tools));
  const std::string prompt = read_prompt_and_tools(body, text, tools, order);
  order.in_reasoning = ends_in_reasoning(order.form, prompt);
  if (!body.boolean_or("parallel_tool_calls", true)) order.most_calls = 1;
  read_chat_constraint(body, text, order);
  sample.prompt = encode_chat_prompt(text, base, prompt, order.kept, take);
  if (sample.prompt.empty()) body.fail("messages", "the prompt is empty");
  sample.topk_sample_logprobs = order.telling.top_logprobs;
  set_max_tokens(text, base, read_max_tokens(body), "messages", sample);
  check_answer_size(order);
  count_prompt_tokens(order);
  return order;
}

}  // namespace strata::server
