// SPDX-License-Identifier: Apache-2.0
// Calls of tools under the grammar of each family: whatever a model draws, the family's reader
// reads it as calls of the tools, with arguments that fit.
#include "server/openai/tool_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <functional>

#include "base/error.h"
#include "base/files.h"
#include "base/rng.h"
#include "server/openai/json_text.h"
#include "server/openai/openai_error.h"
#include "tests/text/tiny_tokenizer.h"
#include "text/tokenizer/detokenizer.h"

namespace strata::server {
namespace {

namespace json = boost::json;

constexpr const char* kTools = R"([
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
      "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1,
      "maximum": 14}, "unit": {"enum": ["C", "F"]}, "code": {"type": "string", "pattern": "^[a-c]{2}$"},
      "near": {"$ref": "#/$defs/near"}}, "$defs": {"near": {"type": "array", "items": {"type":
      ["boolean", "null"]}, "maxItems": 2}}, "required": ["city", "unit"],
      "additionalProperties": false}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object",
      "properties": {}, "additionalProperties": false}}}])";

struct Family {
  const char *name, *tokenizer, *chat;           // a file of templates, or a template's text
  std::vector<std::string> special_tokens = {};  // besides the tokenizer's own
};

const Family kFamilies[] = {
    {"hermes", "qwen2.5", "qwen25"},
    {"hermes, with thoughts", "qwen3", "qwen3"},
    {"function", "qwen3.5", "qwen35"},
    {"mistral, a list", "mistral-v3", "mistral_v3"},
    {"mistral, names", "tekken", "[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}"},
    {"llama", "llama3", "llama31"},
    {"deepseek, fenced", "deepseek", "deepseek_v3"},
    {"deepseek", "deepseek", "<\uff5ctool\u2581call\u2581begin\uff5c></think>"},
    {"dsml", "deepseek", "</think><\uff5cDSML\uff5ctool_calls>"},
    {"dsml, older", "deepseek", "</think><\uff5cDSML\uff5cfunction_calls>"},
    {"gemma 4",
     "gemma3",
     "trl/gemma4_v5",
     {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"}},
};

const Family kChannels = {"gpt-oss",
                          "qwen3",
                          "gptoss",
                          {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"}};

text::Tokenizer tokenizer_of(const Family& family) {
  const std::string file = std::string(STRATA_TOKENIZERS) + "/" + family.tokenizer + ".json";
  if (family.special_tokens.empty()) return text::Tokenizer::load(file);
  const auto size = static_cast<size_t>(text::Tokenizer::load(file).vocab_size());
  std::string more;
  for (size_t i = 0; i < family.special_tokens.size(); ++i)
    more += text::added_token_json(size + i, family.special_tokens[i]) + ",";
  std::string all = read_file(file, 1 << 28);
  all.insert(all.find('[', all.find("\"added_tokens\"")) + 1, more);
  return text::Tokenizer::parse(all, family.name);
}

ServedText text_of(const Family& family) {
  std::string chat = family.chat;
  if (chat.starts_with("trl/")) {
    chat = read_file(std::string(STRATA_TOKENIZERS) + "/" + chat + ".jinja", 1 << 20);
  } else if (chat.find('<') == std::string::npos && chat.find('[') == std::string::npos) {
    chat = read_file(STRATA_SOURCE_DIR "/tests/data/third_party/templates/" + chat + ".jinja",
                     1 << 20);
  }
  return {.tokenizer = tokenizer_of(family),
          .chat = text::ChatTemplate::parse(chat, R"({"bos_token":"<s>","eos_token":"</s>"})")};
}

structured::GrammarSource source_of(const ServedText& text, const CallsGrammar& calls) {
  std::vector<std::string> warnings;
  structured::GrammarSource source =
      make_calls_source(text, answer_form_of(*text.chat), calls, warnings);
  EXPECT_THAT(warnings, ::testing::IsEmpty());
  return source;
}

// As a server has it: what a child has compiled.
structured::Grammar compiled(const structured::Vocabulary& vocabulary,
                             const structured::GrammarSource& source) {
  const structured::Grammar grammar = structured::compile_grammar(vocabulary, source, "tools");
  return structured::Grammar::from_bytes(vocabulary, source, grammar.to_bytes(), {});
}

std::vector<GrammarTool> grammar_tools() {
  std::vector<GrammarTool> out;
  const json::value tools = json::parse(kTools);
  for (const json::value& tool : tools.as_array()) {
    const json::value& function = tool.at("function");
    out.push_back({json::value_to<std::string>(function.at("name")),
                   json::serialize(function.at("parameters"))});
  }
  return out;
}

// Draws what is allowed: often of one byte, and now and then one that may end a text. The end is
// taken where it is.
class Drawer {
 public:
  Drawer(const text::Tokenizer& tokenizer, int32_t end, ArgumentsForm form)
      : tokenizer_(tokenizer), end_(end) {
    for (int32_t token = 0; token < end; ++token) {
      const std::string bytes = tokenizer.token_bytes(token);
      is_short_.push_back(bytes.size() == 1);
      may_end_.push_back(bytes.size() <= 2 && bytes.find_first_of("\"<\n") == 0);
    }
    if (form == ArgumentsForm::kFunction) end_of_value_ = tokenizer.encode("\n</parameter>\n");
    if (form == ArgumentsForm::kDsml)
      end_of_value_ = tokenizer.encode("</\uff5cDSML\uff5cparameter>\n");
    if (form == ArgumentsForm::kGemma) end_of_value_ = tokenizer.encode("<|\"|>");
    if (tokenizer.token_to_id("<|start|>"))
      end_of_value_ = tokenizer.encode("<|end|><|start|>assistant");
  }

  std::vector<int32_t> draw(structured::Matcher& matcher, uint64_t seed) const {
    const Counter counter{.seed = seed, .stream = 7};
    std::vector<uint32_t> bits(structured::num_mask_words(matcher.vocab_size()));
    std::vector<int32_t> answer;
    for (uint64_t step = 0; step < 600; ++step) {
      if (counter.uniform(1000000 + step) < 0.05) end_value(matcher, answer);
      matcher.fill_mask(bits);
      const int32_t token = has_bit(bits, end_) ? end_
                                                : choose(bits, counter.uniform(2 * step),
                                                         counter.uniform(2 * step + 1));
      if (!matcher.accept(token)) break;
      if (matcher.is_ended()) return answer;
      answer.push_back(token);
    }
    ADD_FAILURE() << "it does not end: " << tokenizer_.decode(answer);
    return answer;
  }

 private:
  static bool has_bit(const std::vector<uint32_t>& bits, int32_t token) {
    return (bits[static_cast<size_t>(token / 32)] >> (token % 32) & 1) != 0;
  }
  // Ends a bare value, which no single token ends, where that is allowed here.
  void end_value(structured::Matcher& matcher, std::vector<int32_t>& answer) const {
    structured::Matcher ended = matcher.fork();
    if (!std::ranges::all_of(end_of_value_, [&](int32_t token) { return ended.accept(token); }))
      return;
    matcher = std::move(ended);
    answer.insert(answer.end(), end_of_value_.begin(), end_of_value_.end());
  }
  [[nodiscard]] int32_t choose(const std::vector<uint32_t>& bits, double kind, double which) const {
    std::vector<int32_t> all, short_ones, ends;
    for (int32_t token = 0; token < end_; ++token) {
      if (bits[static_cast<size_t>(token / 32)] == 0 || !has_bit(bits, token)) continue;
      all.push_back(token);
      if (is_short_[static_cast<size_t>(token)]) short_ones.push_back(token);
      if (may_end_[static_cast<size_t>(token)]) ends.push_back(token);
    }
    const std::vector<int32_t>& from = kind < 0.15 && !ends.empty()        ? ends
                                       : kind < 0.6 && !short_ones.empty() ? short_ones
                                                                           : all;
    return from.empty() ? end_
                        : from[static_cast<size_t>(which * static_cast<double>(from.size()))];
  }

  const text::Tokenizer& tokenizer_;
  const int32_t end_;
  std::vector<bool> is_short_, may_end_;
  std::vector<int32_t> end_of_value_;
};

AnswerPiece read_answer(const ServedText& text, const std::vector<int32_t>& answer,
                        bool in_reasoning) {
  const AnswerForm form = answer_form_of(*text.chat);
  static const ToolTypes kTypes(kTools);
  text::IncrementalDetokenizer detokenizer(text.tokenizer, /*skip_special=*/true, form.marks());
  AnswerParser parser(form, {.in_reasoning = in_reasoning, .types = &kTypes});
  AnswerPiece all;
  const auto add = [&](AnswerPiece piece) {
    all.reasoning += piece.reasoning;
    all.content += piece.content;
    text::append_call_pieces(all.calls, std::move(piece.calls));
  };
  for (const int32_t token : answer) add(parser.push(detokenizer.push(token)));
  add(parser.push(detokenizer.flush()));
  add(parser.finish());
  return all;
}

void expect_arguments_fit(const ToolCall& call) {
  const auto value = parse_json_text(call.arguments);
  ASSERT_TRUE(value && value->is_object()) << call.arguments;
  const json::object& arguments = value->get_object();
  if (call.name == "now") {
    EXPECT_TRUE(arguments.empty()) << call.arguments;
    return;
  }
  EXPECT_EQ(call.name, "weather");
  ASSERT_TRUE(arguments.contains("city") && arguments.contains("unit")) << call.arguments;
  EXPECT_TRUE(arguments.at("city").is_string()) << call.arguments;
  EXPECT_TRUE(arguments.at("unit") == "C" || arguments.at("unit") == "F") << call.arguments;
  const json::value* code = arguments.if_contains("code");
  EXPECT_TRUE(code == nullptr || (code->is_string() && code->get_string().size() == 2))
      << call.arguments;
  const json::value* near = arguments.if_contains("near");
  EXPECT_TRUE(near == nullptr || (near->is_array() && near->get_array().size() <= 2))
      << call.arguments;
  const json::value* days = arguments.if_contains("days");
  EXPECT_TRUE(days == nullptr ||
              (days->is_int64() && days->get_int64() >= 1 && days->get_int64() <= 14))
      << call.arguments;
}

class ToolGrammars : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      structured::require_grammars();
    } catch (const Error&) {
      GTEST_SKIP();  // tests/structured fails where they should be there
    }
  }
};

TEST_F(ToolGrammars, EveryCallOfEveryFamilyIsRead) {
  for (const Family& family : kFamilies) {
    SCOPED_TRACE(family.name);
    const ServedText text = text_of(family);
    const int64_t size = text.tokenizer.vocab_size();
    const auto end = static_cast<int32_t>(size);  // of no token
    const structured::Vocabulary vocabulary = make_answer_vocabulary(text, size + 1);
    const structured::Grammar grammar =
        compiled(vocabulary, source_of(text, {.tools = grammar_tools(), .may_repeat = false}));
    const AnswerForm form = answer_form_of(*text.chat);
    const ArgumentsForm arguments = form.calls->writing(*text.chat).arguments;
    const Drawer drawer(text.tokenizer, end, arguments);
    size_t num_calls = 0;
    for (uint64_t seed = 0; num_calls < 40; ++seed) {
      structured::Matcher matcher = grammar.start({end});
      const std::vector<int32_t> answer = drawer.draw(matcher, seed);
      const AnswerPiece piece = read_answer(text, answer, /*in_reasoning=*/false);
      SCOPED_TRACE(text.tokenizer.decode(answer));
      EXPECT_EQ(piece.content, "");
      ASSERT_GE(piece.calls.size(), 1u);
      num_calls += piece.calls.size();
      for (const ToolCall& call : piece.calls) expect_arguments_fit(call);
      if (HasFailure()) return;
    }
  }
}

const ServedText& text_in_channels() {
  static const ServedText kText = text_of(kChannels);
  return kText;
}

// Draws whole answers in channels, every other one behind a thought, and gives each to `check`.
void draw_in_channels(const CallsGrammar& calls, const structured::GrammarSource* answer, int count,
                      const std::function<void(const AnswerPiece&)>& check) {
  const ServedText& text = text_in_channels();
  const int64_t size = text.tokenizer.vocab_size();
  const auto end = static_cast<int32_t>(size);
  std::vector<std::string> warnings;
  const structured::Grammar grammar = compiled(make_answer_vocabulary(text, size + 1),
                                               make_channels_source(text, calls, answer, warnings));
  EXPECT_THAT(warnings, ::testing::IsEmpty());
  const Drawer drawer(text.tokenizer, end, ArgumentsForm::kJson);
  for (int seed = 0; seed < count; ++seed) {
    structured::Matcher matcher = grammar.start({end});
    const std::string thought = seed % 2 == 0 ? "" : "A thought,\n\"{\".";
    std::vector<int32_t> answer;
    if (!thought.empty()) {
      answer = text.tokenizer.encode("<|channel|>analysis<|message|>" + thought +
                                     "<|end|><|start|>assistant");
    }
    for (const int32_t token : answer) ASSERT_TRUE(matcher.accept(token));
    const std::vector<int32_t> drawn = drawer.draw(matcher, static_cast<uint64_t>(seed));
    answer.insert(answer.end(), drawn.begin(), drawn.end());
    SCOPED_TRACE(text.tokenizer.decode(answer));
    const AnswerPiece piece = read_answer(text, answer, /*in_reasoning=*/false);
    EXPECT_TRUE(piece.reasoning.starts_with(thought)) << piece.reasoning;
    check(piece);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_F(ToolGrammars, EveryCallInChannelsIsRead) {
  draw_in_channels({.tools = grammar_tools()}, nullptr, 40, [](const AnswerPiece& piece) {
    EXPECT_EQ(piece.content, "");
    ASSERT_EQ(piece.calls.size(), 1u);
    expect_arguments_fit(piece.calls[0]);
  });
}

TEST_F(ToolGrammars, EveryAnswerInChannelsFits) {
  const structured::GrammarSource schema = {
      .text = R"({"type": "object", "properties": {"a": {"enum": ["x", 7]}, "b": {"type": "array",
          "items": {"type": "boolean"}, "minItems": 1}}, "required": ["a", "b"],
          "additionalProperties": false})"};
  draw_in_channels({}, &schema, 40, [](const AnswerPiece& piece) {
    EXPECT_TRUE(piece.calls.empty());
    const auto value = parse_json_text(piece.content);
    ASSERT_TRUE(value && value->is_object()) << piece.content;
    EXPECT_TRUE(value->at("a") == "x" || value->at("a") == 7) << piece.content;
    EXPECT_GE(value->at("b").as_array().size(), 1u) << piece.content;
  });
}

// Next to a schema, a call; free, a text before it and without it.
TEST_F(ToolGrammars, ChannelsMayHoldAnAnswerOrACall) {
  const ServedText& text = text_in_channels();
  const int64_t size = text.tokenizer.vocab_size();
  const auto end = static_cast<int32_t>(size);
  const structured::Vocabulary vocabulary = make_answer_vocabulary(text, size + 1);
  const structured::GrammarSource done = {.kind = structured::GrammarKind::kRegex, .text = "do+ne"};
  const auto takes = [&](const CallsGrammar& calls, const structured::GrammarSource* answer,
                         const std::string& written) {
    std::vector<std::string> warnings;
    structured::Matcher matcher =
        compiled(vocabulary, make_channels_source(text, calls, answer, warnings)).start({end});
    bool is_taken = true;
    for (const int32_t token : text.tokenizer.encode(written))
      is_taken = is_taken && matcher.accept(token);
    return is_taken && matcher.accept(end);
  };
  const CallsGrammar bound = {.tools = grammar_tools()};
  CallsGrammar free = bound;
  free.begins_free = true;
  const std::string thought = "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant";
  const std::string remark = "<|channel|>commentary<|message|>I ask.<|end|><|start|>assistant";
  const std::string text_answer = "<|channel|>final<|message|>It rains.";
  const std::string regex_answer = "<|channel|>final <|constrain|>json<|message|>doone";
  for (const std::string call : {"<|channel|>commentary to=functions.now <|constrain|>json",
                                 " to=functions.now<|channel|>commentary json"}) {
    const std::string whole = call + "<|message|>{}";
    EXPECT_TRUE(takes(bound, nullptr, thought + whole)) << call;
    EXPECT_TRUE(takes(bound, &done, whole)) << call;
    EXPECT_TRUE(takes(free, nullptr, thought + remark + whole)) << call;
    EXPECT_FALSE(takes({}, &done, whole)) << call;
    EXPECT_FALSE(takes(free, nullptr, call + "<|message|>{\"a\": 1}")) << call;
  }
  EXPECT_TRUE(takes(bound, &done, thought + thought + regex_answer));
  EXPECT_TRUE(takes(free, nullptr, text_answer));
  EXPECT_FALSE(takes(bound, nullptr, text_answer));
  EXPECT_FALSE(takes(bound, &done, text_answer));
  EXPECT_FALSE(
      takes(bound, nullptr, remark + " to=functions.now<|channel|>commentary<|message|>{}"));
  EXPECT_FALSE(takes(bound, &done, thought));
}

// Several calls in one answer are several calls.
TEST_F(ToolGrammars, CallsMayFollowEachOther) {
  for (const Family& family : kFamilies) {
    SCOPED_TRACE(family.name);
    const ServedText text = text_of(family);
    const AnswerForm form = answer_form_of(*text.chat);
    const int64_t size = text.tokenizer.vocab_size();
    const auto end = static_cast<int32_t>(size);
    const structured::Vocabulary vocabulary = make_answer_vocabulary(text, size + 1);
    const CallWriting writing = form.calls->writing(*text.chat);
    const std::string no_arguments =
        writing.arguments == ArgumentsForm::kJson || writing.arguments == ArgumentsForm::kGemma
            ? "{}"
            : "";
    const std::string call = writing.open + "now" + writing.middle + no_arguments + writing.close;
    const std::string two = writing.before + call + writing.between + call + writing.after;
    for (const bool may_repeat : {true, false}) {
      structured::Matcher matcher =
          compiled(vocabulary,
                   source_of(text, {.tools = grammar_tools(), .may_repeat = may_repeat}))
              .start({end});
      bool is_taken = true;
      for (const int32_t token : text.tokenizer.encode(two))
        is_taken = is_taken && matcher.accept(token);
      EXPECT_EQ(is_taken && matcher.accept(end), may_repeat) << two;
    }
    EXPECT_EQ(read_answer(text, text.tokenizer.encode(two), false).calls.size(), 2u) << two;
  }
}

// Free text, then a call, which begins with the family's mark; or no call at all.
TEST_F(ToolGrammars, FreeTextMayComeFirst) {
  for (const Family& family : kFamilies) {
    SCOPED_TRACE(family.name);
    const ServedText text = text_of(family);
    const int64_t size = text.tokenizer.vocab_size();
    const auto end = static_cast<int32_t>(size);
    const structured::GrammarSource source =
        source_of(text, {.tools = grammar_tools(), .may_repeat = false, .begins_free = true});
    const structured::Grammar grammar = compiled(make_answer_vocabulary(text, size + 1), source);
    structured::Matcher free = grammar.start({end});
    for (const int32_t token : text.tokenizer.encode("It rains.")) EXPECT_TRUE(free.accept(token));
    EXPECT_TRUE(free.accept(end));
    EXPECT_TRUE(free.is_ended());
    structured::Matcher called = grammar.start({end});
    std::vector<int32_t> answer = text.tokenizer.encode(source.lead_mark);
    for (const int32_t token : answer) ASSERT_TRUE(called.accept(token)) << source.lead_mark;
    EXPECT_FALSE(called.accept(end));
    const std::vector<int32_t> rest =
        Drawer(text.tokenizer, end, answer_form_of(*text.chat).calls->writing(*text.chat).arguments)
            .draw(called, 3);
    answer.insert(answer.end(), rest.begin(), rest.end());
    const AnswerPiece piece = read_answer(text, answer, false);
    ASSERT_GE(piece.calls.size(), 1u) << text.tokenizer.decode(answer);
    for (const ToolCall& call : piece.calls) expect_arguments_fit(call);
  }
}

structured::GrammarSource source_of_parameters(const Family& family, const std::string& schema) {
  return source_of(text_of(family), {.tools = {{"f", schema}}, .may_repeat = false});
}

TEST_F(ToolGrammars, ReferencesAreWhatTheyLeadTo) {
  for (const Family& family : {kFamilies[2], kFamilies[8]}) {
    SCOPED_TRACE(family.name);
    const std::string head = R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": )";
    EXPECT_EQ(source_of_parameters(family, head + R"({"$ref": "#/properties/a"}}})").text,
              source_of_parameters(family, head + R"({"type": "integer"}}})").text);
  }
}

TEST_F(ToolGrammars, ReferencesThatLeadBackAndDeepSchemasEnd) {
  std::string deep = R"({"type": "string"})";
  for (int i = 0; i < 20; ++i) deep = R"({"type": "array", "items": )" + deep + "}";
  for (const Family& family : {kFamilies[0], kFamilies[2], kFamilies[8]}) {
    SCOPED_TRACE(family.name);
    EXPECT_FALSE(source_of_parameters(family, R"({"type": "object", "properties": {"a": {"$ref":
        "#/$defs/a"}, "all": {"$ref": "#"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"},
        {"type": "null"}]}}})")
                     .text.empty());
    EXPECT_FALSE(
        source_of_parameters(family, R"({"type": "object", "properties": {"a": )" + deep + "}}")
            .text.empty());
  }
}

// Gemma 4's form has no names for parts, so what objects and arrays hold is written more than once.
TEST_F(ToolGrammars, SmallSchemasStaySmallGrammars) {
  const std::string leaf = R"({"type": "string"})";
  std::string objects = leaf, arrays = leaf,
              named = R"("n30": {"const": ")" + std::string(20000, 'x') + R"("})";
  for (int i = 0; i < 25; ++i) {
    arrays = R"({"type": "array", "items": )" + arrays + "}";
    objects = R"({"type": "object", "properties": {"a": {"type": "null"}, "b": )" + objects + "}}";
  }
  for (int i = 0; i < 30; ++i) {
    const std::string next = R"({"$ref": "#/$defs/n)" + std::to_string(i + 1) + R"("})";
    named += R"(, "n)" + std::to_string(i) + R"(": {"anyOf": [)" + next + ", " + next + "]}";
  }
  const std::string head = R"({"type": "object", "properties": {"a": )";
  const Family& gemma = *std::ranges::find_if(
      kFamilies, [](const Family& each) { return std::string(each.name).starts_with("gemma"); });
  const ServedText text = text_of(gemma);
  for (const std::string& schema :
       {head + arrays + "}}", head + objects + "}}",
        head + R"({"$ref": "#/$defs/n0"}}, "$defs": {)" + named + "}}"}) {
    std::vector<std::string> warnings;
    const CallsGrammar lenient = {.tools = {{"f", schema, "tools[0]"}}, .may_repeat = false};
    const AnswerForm form = answer_form_of(*text.chat);
    EXPECT_LT(make_calls_source(text, form, lenient, warnings).text.size(), size_t{16} << 20);
    EXPECT_THAT(warnings, ::testing::Contains(::testing::HasSubstr("a schema so large")));
    const CallsGrammar strict = {.tools = {{"f", schema, "tools[0]", true}}, .may_repeat = false};
    EXPECT_THROW(make_calls_source(text, form, strict, warnings), OpenAiFault);
  }
}

// An answer without calls fits the schema that is asked for next to tools.
TEST_F(ToolGrammars, ASchemaMayStandNextToThem) {
  const ServedText text = text_of(kFamilies[0]);
  const int64_t size = text.tokenizer.vocab_size();
  const auto end = static_cast<int32_t>(size);
  const structured::Grammar grammar =
      compiled(make_answer_vocabulary(text, size + 1),
               source_of(text, {.tools = grammar_tools(), .or_schema = R"({"const": "done"})"}));
  for (const std::string answer :
       {R"("done")", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"}) {
    structured::Matcher matcher = grammar.start({end});
    for (const int32_t token : text.tokenizer.encode(answer))
      EXPECT_TRUE(matcher.accept(token)) << answer;
    EXPECT_TRUE(matcher.accept(end)) << answer;
  }
}

}  // namespace
}  // namespace strata::server
