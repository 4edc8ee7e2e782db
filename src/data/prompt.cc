// SPDX-License-Identifier: Apache-2.0
#include "data/prompt.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <utility>

#include "data/json_fields.h"
#include "text/conversation.h"
#include "text/json_field.h"

namespace strata::data {
namespace {

namespace json = boost::json;

std::vector<int32_t> encode_text(const std::string& text, const ExampleContext& context) {
  std::vector<int32_t> ids = context.tokenizer.encode(text, /*add_special=*/true);
  const auto doubled = static_cast<std::ptrdiff_t>(context.tokenizer.num_doubled_at_start(text));
  ids.erase(ids.begin(), ids.begin() + doubled);
  if (doubled > 0 && context.num_doubled_starts != nullptr) ++*context.num_doubled_starts;
  return ids;
}

// The messages before the answer, as the template wants them.
json::array read_turns(const json::array& given, const std::string& field,
                       const ExampleContext& context) {
  text::ConversationReader reader(context.form, text::Roles::kAny);
  for (size_t turn = 0; turn < given.size(); ++turn) {
    const std::string path = fmt::format("{}[{}]", field, turn);
    if (!given[turn].is_object())
      fail_record(fmt::format("{}: got {}, want an object", path, kind_of(given[turn])));
    const json::object& message = given[turn].get_object();
    const json::value* role = message.if_contains("role");
    if (turn > 0 && turn + 1 == given.size() && role != nullptr && *role == "assistant") break;
    reader.add(text::Fields(message, path + "."));
  }
  if (reader.empty()) fail_record(fmt::format("{}: got no turn, want a question", field));
  return reader.take();
}

ReadPrompt render_turns(const json::object& record, const json::array& turns,
                        const ExampleContext& context) {
  text::ChatRequest request = {.messages = json::serialize(turns), .add_generation_prompt = true};
  if (const json::value* tools = field_of(record, "tools")) {
    const json::array list = text::normalized_tools(*tools, "tools");
    if (!list.empty()) request.tools = json::serialize(list);
  }
  if (const json::value* vars = field_of(record, "chat_template_kwargs")) {
    if (!vars->is_object())
      fail_record(fmt::format("chat_template_kwargs: got {}, want an object", kind_of(*vars)));
    request.vars = json::serialize(*vars);
  }
  const text::RenderedChat rendered = context.render(request);
  return {.tokens = context.tokenizer.encode(rendered.text),
          .has_read_clock = rendered.has_read_clock};
}

}  // namespace

ReadPrompt read_prompt(std::string_view record, const ExampleContext& context) {
  const json::value value = text::parse_json(record, "the record");
  if (!value.is_object()) fail_record(fmt::format("got {}, want an object", kind_of(value)));
  const json::object& object = value.get_object();
  const char* const field = object.contains("prompt") ? "prompt" : "messages";
  const json::value* prompt = field_of(object, field);
  ReadPrompt read;
  if (prompt != nullptr && prompt->is_array()) {
    read = render_turns(object, read_turns(prompt->get_array(), field, context), context);
  } else if (prompt != nullptr && prompt->is_string() && std::string_view(field) == "prompt") {
    read.tokens = encode_text(std::string(prompt->get_string()), context);
  } else {
    fail_record(fmt::format("{}: got {}, want a prompt: a text, or a list of messages", field,
                            prompt == nullptr ? "nothing" : kind_of(*prompt)));
  }
  if (read.tokens.empty()) fail_record(fmt::format("{}: got no token", field));
  return read;
}

Example example_of_prompt(std::vector<int32_t> tokens) {
  Example example = {.tokens = std::move(tokens), .targets = {}, .weights = {}};
  example.targets.assign(example.tokens.begin() + 1, example.tokens.end());
  example.targets.push_back(0);
  example.weights.assign(example.tokens.size(), 0.0f);
  return example;
}

}  // namespace strata::data
