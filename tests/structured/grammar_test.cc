// SPDX-License-Identifier: Apache-2.0
// Masks with a slow reference that tries every token, on tokenizers of several kinds; walks along
// masks, which end in JSON; and what the library itself refuses.
#include "structured/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "tests/structured/tiny_tokens.h"

namespace strata::structured {
namespace {

using testing::HasSubstr;

TEST(GrammarsInBuild, AreThereUnlessTurnedOff) {
  if (STRATA_WANTS_GRAMMARS) {
    EXPECT_NO_THROW(require_grammars());
  } else {
    EXPECT_THROW(require_grammars(), Error);
  }
}

class Grammars : public testing::Test {
 protected:
  void SetUp() override {
    if (!STRATA_WANTS_GRAMMARS) GTEST_SKIP();
  }
};

std::vector<int32_t> tokens_that_are_accepted(Matcher& matcher, int64_t vocab_size) {
  std::vector<int32_t> out;
  for (int32_t token = 0; token < vocab_size; ++token) {
    if (!matcher.accept(token)) continue;
    matcher.rollback(1);
    out.push_back(token);
  }
  return out;
}

constexpr const char* kSchemas[] = {
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer",
        "minimum": 0, "maximum": 130}, "tags": {"type": "array", "items": {"enum": ["a", "b\n", 3]},
        "maxItems": 3}}, "required": ["name", "age"], "additionalProperties": false})",
    R"({"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "string",
        "maxLength": 4}, {"type": "null"}]}, "minItems": 2})",
    R"({"type": "object", "properties": {"id": {"type": "string", "pattern": "^[a-f]{2}-\\d+$"}},
        "additionalProperties": {"type": "boolean"}})",
    R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value":
        {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["value", "next"], "additionalProperties": false}}})",
    R"({})",
};

// A walk of `steps` random tokens that are allowed; each mask with what is accepted one by one.
void compare_along_walk(const Tokens& tokens, const std::string& schema, uint64_t seed, int steps) {
  Matcher matcher = tokens.start(schema);
  const Counter counter{.seed = seed, .stream = 1};
  std::vector<int32_t> answer;
  for (int step = 0; step < steps && !matcher.is_ended(); ++step) {
    const std::vector<int32_t> allowed = allowed_tokens(matcher);
    const std::vector<int32_t> accepted = tokens_that_are_accepted(matcher, tokens.size);
    std::vector<int32_t> different;
    std::ranges::set_symmetric_difference(allowed, accepted, std::back_inserter(different));
    std::string texts;
    for (const int32_t token : different) texts += " [" + tokens.tokenizer.token_bytes(token) + "]";
    ASSERT_EQ(texts, "") << schema << " behind " << tokens.tokenizer.decode(answer);
    ASSERT_FALSE(allowed.empty());
    const auto draw = static_cast<size_t>(counter.uniform(static_cast<uint64_t>(step)) *
                                          static_cast<double>(allowed.size()));
    ASSERT_TRUE(matcher.accept(allowed[draw]));
    answer.push_back(allowed[draw]);
  }
}

TEST_F(Grammars, MasksAreTheTokensThatAreAcceptedOneByOne) {
  for (const char* schema : kSchemas)
    for (uint64_t seed = 0; seed < 4; ++seed) compare_along_walk(tiny(), schema, seed, 40);
}

struct RealTokenizer {
  const char *name, *end;
};

TEST_F(Grammars, MasksAreThoseOfTokenizersOfEveryKind) {
  constexpr RealTokenizer kTokenizers[] = {
      {"mistral", "</s>"}, {"smollm2", "<|im_end|>"}, {"gemma3", "<eos>"}, {"qwen3", "<|im_end|>"}};
  for (const auto& [name, end] : kTokenizers) {
    SCOPED_TRACE(name);
    const Tokens tokens(std::string(STRATA_TOKENIZERS) + "/" + name + ".json", end);
    compare_along_walk(tokens, kSchemas[0], 1, 12);
    compare_along_walk(tokens, kSchemas[2], 2, 8);
  }
}

// Counts beyond any answer, recursion that leads nowhere, expressions that blow up: they compile,
// and their masks are those of their language.
TEST_F(Grammars, HostileSchemasCompile) {
  constexpr const char* kHostile[] = {
      R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})",
      R"({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"},
          {"$ref": "#/$defs/a"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"const": 1}]}}})",
      R"({"type": "array", "items": {"type": "string"}, "minItems": 1000000000,
          "maxItems": 2000000000})",
      R"({"type": "string", "minLength": 5, "maxLength": 2147483647})",
      R"({"type": "string", "pattern": "^(a{1000}){1000}$"})",
      R"({"type": "string", "pattern": "^((a*)*)*$"})",
      R"({"type": "string", "pattern": "^(a|b)*a(a|b){20}$"})",
      R"({"type": "integer", "minimum": -9223372036854775807, "maximum": 9223372036854775807})",
  };
  for (const char* schema : kHostile) compare_along_walk(tiny(), schema, 3, 8);
}

// What is sampled is JSON, where it ends: ends are taken as soon as they are allowed.
TEST_F(Grammars, WalksEndInJson) {
  int64_t num_ended = 0;
  for (const char* schema : kSchemas) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      Matcher matcher = tiny().start(schema);
      const Counter counter{.seed = seed, .stream = 2};
      std::vector<int32_t> answer;
      while (!matcher.is_ended() && answer.size() < 200) {
        const std::vector<int32_t> allowed = allowed_tokens(matcher);
        const auto draw = static_cast<size_t>(counter.uniform(answer.size()) *
                                              static_cast<double>(allowed.size()));
        const bool may_end = std::ranges::count(allowed, tiny().end_token) > 0;
        answer.push_back(may_end ? tiny().end_token : allowed[draw]);
        ASSERT_TRUE(matcher.accept(answer.back()));
      }
      if (!matcher.is_ended()) continue;
      ++num_ended;
      EXPECT_TRUE(allowed_tokens(matcher).empty());
      EXPECT_FALSE(matcher.accept(answer[0]));
      answer.pop_back();
      boost::system::error_code fault;
      boost::json::parse(tiny().tokenizer.decode(answer), fault);
      EXPECT_TRUE(!fault ||
                  fault == boost::json::error::exponent_overflow)  // a number all the same
          << tiny().tokenizer.decode(answer);
    }
  }
  EXPECT_GT(num_ended, 60);
}

TEST_F(Grammars, ForksGoTheirOwnWay) {
  Matcher matcher = tiny().start(R"({"enum": ["ab", "cd"]})");
  const auto ids = [](const std::string& text) { return tiny().tokenizer.encode(text); };
  for (const int32_t token : ids("\"")) ASSERT_TRUE(matcher.accept(token));
  const std::vector<uint32_t> before = mask_of(matcher);
  Matcher other = matcher.fork();
  ASSERT_TRUE(matcher.accept(ids("a")[0]));
  EXPECT_EQ(mask_of(other), before);
  EXPECT_FALSE(matcher.accept(ids("d")[0]));
  ASSERT_TRUE(other.accept(ids("c")[0]));
  ASSERT_TRUE(other.accept(ids("d")[0]));
  other.rollback(2);
  EXPECT_EQ(mask_of(other), before);
  ASSERT_TRUE(matcher.accept(ids("b")[0]));
  for (const int32_t token : ids("\"")) ASSERT_TRUE(matcher.accept(token));
  EXPECT_FALSE(matcher.is_ended());
  EXPECT_EQ(allowed_tokens(matcher), std::vector<int32_t>{tiny().end_token});
  ASSERT_TRUE(matcher.accept(tiny().end_token));
  EXPECT_TRUE(matcher.is_ended());
  matcher.rollback(1);
  EXPECT_FALSE(matcher.is_ended());
}

// A tab in a string of JSON is no JSON, though the library's grammar of a string with a length has
// one.
TEST_F(Grammars, NoTokenWithAControlCharacterIsAllowed) {
  Matcher matcher = tiny().start(R"({"type": "string", "maxLength": 5})");
  for (const int32_t token : tiny().tokenizer.encode("\"")) ASSERT_TRUE(matcher.accept(token));
  for (const int32_t token : allowed_tokens(matcher)) {
    for (const char c : tiny().tokenizer.token_bytes(token))
      EXPECT_GE(static_cast<unsigned char>(c), 0x20) << token;
  }
}

TEST_F(Grammars, NoEndTokenIsAnErrorThatSaysSo) {
  try {
    static_cast<void>(compile_grammar(tiny().vocabulary, {.text = "{}"}, "S").start({}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("ends with an end token, and the model names none"));
  }
}

// Free text, then the mark, behind which the grammar begins; tokens that go beyond the mark are not
// allowed, and the answer ends before it only where that is asked for.
TEST_F(Grammars, BeginBehindAMark) {
  const auto start = [](bool may_end) {
    const GrammarSource source = {.text = R"({"const": 7})",
                                  .may_begin_with_breaks = true,
                                  .lead_mark = "nd.",
                                  .may_end_in_lead = may_end};
    return compile_grammar(tiny().vocabulary, source, "S").start({tiny().end_token});
  };
  const auto accept_text = [](Matcher& matcher, const std::string& text) {
    for (const char c : text) {
      const std::optional<int32_t> token = tiny().tokenizer.token_to_id(std::string(1, c));
      ASSERT_TRUE(matcher.accept(c == '\n' ? tiny().tokenizer.encode("\n").at(0) : token.value()))
          << c;
    }
  };
  Matcher matcher = start(false);
  const size_t all = allowed_tokens(matcher).size();
  EXPECT_GT(all, 4000u);
  EXPECT_FALSE(matcher.accept(tiny().end_token));
  accept_text(matcher, "andnnd");
  const std::vector<int32_t> allowed = allowed_tokens(matcher);
  for (int32_t token = 0; token < tiny().size; ++token) {
    const std::string bytes = tiny().tokenizer.token_bytes(token);
    const bool is_beyond = bytes.size() > 1 && bytes[0] == '.';
    if (is_beyond) {
      EXPECT_EQ(std::ranges::count(allowed, token), 0) << bytes;
    }
  }
  EXPECT_LT(allowed.size(), all);
  accept_text(matcher, ".");
  EXPECT_LT(allowed_tokens(matcher).size(), 20u);
  Matcher other = matcher.fork();
  accept_text(matcher, "\n\n7");
  EXPECT_EQ(allowed_tokens(matcher), std::vector<int32_t>{tiny().end_token});
  ASSERT_TRUE(matcher.accept(tiny().end_token));
  EXPECT_TRUE(matcher.is_ended());
  matcher.rollback(6);  // the end, what fits, the mark's end and one token before it
  EXPECT_GT(allowed_tokens(matcher).size(), 4000u);
  accept_text(matcher, "d.7");
  EXPECT_EQ(allowed_tokens(matcher), std::vector<int32_t>{tiny().end_token});
  accept_text(other, "7");
  Matcher may_end = start(true);
  accept_text(may_end, "an");
  ASSERT_TRUE(may_end.accept(tiny().end_token));
  EXPECT_TRUE(may_end.is_ended());
  may_end.rollback(1);
  EXPECT_FALSE(may_end.is_ended());
  accept_text(may_end, "d.7");
}

TEST_F(Grammars, OfExpressionsAndRules) {
  const auto walk = [](GrammarKind kind, const std::string& text) {
    Matcher matcher = compile_grammar(tiny().vocabulary, {.kind = kind, .text = text}, "S")
                          .start({tiny().end_token});
    std::vector<int32_t> answer;
    while (answer.size() < 30) {
      const int32_t token = allowed_tokens(matcher).front();
      EXPECT_TRUE(matcher.accept(token));
      if (matcher.is_ended()) break;
      answer.push_back(token);
    }
    return tiny().tokenizer.decode(answer);
  };
  EXPECT_EQ(walk(GrammarKind::kRegex, "[b-b]{3}-7"), "bbb-7");
  EXPECT_EQ(walk(GrammarKind::kEbnf, "root ::= word \"-\" word\nword ::= \"yes\""), "yes-yes");
}

// A mark stands where a structural tag names its token, and nowhere in texts.
TEST_F(Grammars, MarksStandApartFromTexts) {
  const Vocabulary vocabulary(tiny().tokenizer, tiny().size, {.apart = {"am"}});
  const int32_t mark = tiny().tokenizer.token_to_id("am").value();
  const std::string tags =
      R"({"type": "structural_tag", "format": {"type": "sequence", "elements": [
          {"type": "token", "token": )" +
      std::to_string(mark) + R"(}, {"type": "json_schema", "json_schema": {"type": "string"}}]}})";
  Matcher matcher = compile_grammar(vocabulary, {.kind = GrammarKind::kTags, .text = tags}, "S")
                        .start({tiny().end_token});
  EXPECT_EQ(allowed_tokens(matcher), std::vector<int32_t>{mark});
  ASSERT_TRUE(matcher.accept(mark));
  for (const int32_t token : tiny().tokenizer.encode("\"a")) ASSERT_TRUE(matcher.accept(token));
  EXPECT_EQ(std::ranges::count(allowed_tokens(matcher), mark), 0);
  EXPECT_FALSE(matcher.accept(mark));
  Matcher plain = tiny().start(R"({"type": "string"})");
  for (const int32_t token : tiny().tokenizer.encode("\"a")) ASSERT_TRUE(plain.accept(token));
  EXPECT_EQ(std::ranges::count(allowed_tokens(plain), mark), 1);
}

TEST_F(Grammars, WhatIsNoExpressionIsRefused) {
  const auto fault = [](GrammarKind kind, const std::string& text) -> std::string {
    try {
      compile_grammar(tiny().vocabulary, {.kind = kind, .text = text}, "S");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(fault(GrammarKind::kRegex, "(a"), HasSubstr("S: "));
  EXPECT_THAT(fault(GrammarKind::kEbnf, "root ::= other"), HasSubstr("S: "));
  EXPECT_THAT(fault(GrammarKind::kEbnf, "root ::= TagDispatch((\"a\", root))"),
              HasSubstr("S: TagDispatch is not supported"));
  EXPECT_THAT(fault(GrammarKind::kTags, "{}"), HasSubstr("S: "));
  EXPECT_THAT(fault(GrammarKind::kRegex, std::string(70000, 'a')),
              HasSubstr("S: has 70000 bytes, want 65536 at most"));
}

struct Refusal {
  const char *schema, *fault;
};

// What the check leaves to the library, whose faults and warnings are both refusals.
TEST_F(Grammars, WhatTheLibraryWarnsOfIsRefused) {
  constexpr Refusal kRefusals[] = {
      {R"({"items": {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}})",
       "S: #/items/oneOf: one value may fit two schemas of oneOf"},
      {R"({"type": "string", "pattern": "(?=a)b"})", "S: "},
      {R"({"type": "string", "pattern": "(a"})", "S: "},
      {R"({"type": "string", "pattern": "a\\bb"})", "S: "},
      {R"({"type": "integer", "multipleOf": 4096})", "ignoring multipleOf"},
      {R"({"type": "integer", "minimum": 0, "multipleOf": 5})", "ignoring multipleOf"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "minimum greater than maximum"},
      {R"({"type": "integer", "minimum": 1e300})", "Integer exceeds maximum limit"},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", "is greater than maxLength"},
      {R"({"type": "array", "items": {}, "minItems": 3, "maxItems": 2})", "greater than maxItems"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})", "Circular $ref"},
      {"false", "cannot accept any value"},
  };
  for (const auto& [schema, fault] : kRefusals)
    EXPECT_THAT(tiny().fault_of(schema), HasSubstr(fault)) << schema;
  EXPECT_EQ(tiny().fault_of(R"({"oneOf": [{"type": "string"}, {"type": "null"}]})"), "");
  EXPECT_EQ(tiny().fault_of(R"({"type": "integer", "multipleOf": 5})"), "");
}

}  // namespace
}  // namespace strata::structured
