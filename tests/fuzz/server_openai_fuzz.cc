// SPDX-License-Identifier: Apache-2.0
// A chat or completion of OpenAI's form: any body is a sample within its limits or an Error whose
// message is short. Any bytes are an answer of every family, in whatever pieces they come: the
// pieces join to what the whole gives.
#include <array>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/openai/answer_parser.h"
#include "server/openai/chat_body.h"
#include "server/openai/completion_body.h"
#include "tests/fuzz/records.h"

namespace {

using namespace strata::server;
using strata::fuzz::require;
using strata::text::JsonBody;

constexpr size_t kLongestMessage = 4000;

// A vocabulary of bytes alone.
strata::text::Tokenizer make_tokenizer() {
  boost::json::object vocabulary;
  for (int i = 0; i < 128; ++i) {
    const char c = static_cast<char>(i);
    if (i > 32 && i < 127) vocabulary[std::string(1, c)] = i;
  }
  boost::json::object model = {
      {"type", "BPE"}, {"vocab", vocabulary}, {"merges", boost::json::array()}, {"unk_token", "?"}};
  const boost::json::object file = {{"version", "1.0"}, {"model", model}};
  return strata::text::Tokenizer::parse(boost::json::serialize(file), "fuzz");
}

const ServedText& served() {
  static const ServedText kText = [] {
    ServedText text{.tokenizer = make_tokenizer()};
    text.chat = strata::text::ChatTemplate::parse(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls }}{% endfor %}"
        "{{ tools }}<think></think><tool_call>");
    return text;
  }();
  return kText;
}

template <typename Read>
void attempt(Read read) {
  try {
    const AnswerOrder order = read();
    require(!order.samples.empty() && order.choices_each() >= 1);
    for (const strata::api::Sample& sample : order.samples) {
      require(!sample.prompt.empty() && sample.max_tokens >= 1);
      require(static_cast<int64_t>(sample.prompt.size()) + sample.max_tokens <= 512);
    }
  } catch (const strata::Error& error) {
    require(!std::string_view(error.what()).empty());
    require(std::string_view(error.what()).size() < kLongestMessage);
  }
}

void read_bodies(std::string_view text) {
  strata::api::BaseInfo base;
  base.vocab_size = 128;
  base.max_context = 512;
  try {
    const JsonBody body(text, "fuzz");
    attempt([&] { return read_chat(body.root(), served(), base, 1); });
    attempt([&] { return read_completion(body.root(), served(), base, 1); });
  } catch (const strata::Error& error) {
    require(std::string_view(error.what()).size() < kLongestMessage);
  }
}

std::string joined(const AnswerForm& form, const ToolTypes& types, bool in_reasoning,
                   std::string_view text, size_t step) {
  AnswerParser parser(form, {.in_reasoning = in_reasoning, .types = &types});
  std::string reasoning, content, calls;
  const auto add = [&](const AnswerPiece& piece) {
    reasoning += piece.reasoning;
    content += piece.content;
    for (const ToolCall& call : piece.calls) {
      require(!call.name.empty() || !calls.empty());  // arguments have a call that they are of
      if (!call.name.empty()) calls += '\0' + call.name + '(';
      calls += call.arguments;
    }
  };
  for (size_t i = 0; i < text.size(); i += step) add(parser.push(text.substr(i, step)));
  add(parser.finish());
  return reasoning + '\0' + content + '\0' + calls;
}

// The first byte says where the answer begins and in what pieces it comes.
void read_answers(std::string_view text) {
  if (text.empty()) return;
  const auto first = static_cast<uint8_t>(text[0]);
  text.remove_prefix(1);
  static const ToolTypes kTypes(
      R"([{"function":{"name":"f","parameters":{"properties":{"a":{"type":"integer"}}}}}])");
  static const std::array<AnswerForm, 5> kForms = [] {
    std::array<AnswerForm, 5> forms;
    size_t i = 0;
    for (const char* source :
         {"</think><tool_call>", "[/THINK][TOOL_CALLS]", "</think>\uff5cDSML\uff5c",
          "</think><\uff5ctool\u2581call\u2581begin\uff5c>", "\"parameters\": "}) {
      forms[i++] = answer_form_of(strata::text::ChatTemplate::parse(source));
    }
    return forms;
  }();
  for (const AnswerForm& form : kForms) {
    const std::string whole = joined(form, kTypes, (first & 1) != 0, text, text.size() + 1);
    require(joined(form, kTypes, (first & 1) != 0, text, 1 + (first >> 1) % 17) == whole);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_bodies(text);
  read_answers(text);
  return 0;
}
