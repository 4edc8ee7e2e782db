// SPDX-License-Identifier: Apache-2.0
// Answers that have to fit something, as requests ask for them: what becomes of each field, what
// is refused by which name, and what clients are told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "structured/grammar_store.h"
#include "tests/server/openai/openai_house.h"

namespace strata::server {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

const std::string kHello = R"("messages":[{"role":"user","content":"Hello"}])";
const std::string kPerson = R"({"type":"object","properties":{"name":{"enum":["Ada","Bob"]}},)"
                            R"("required":["name"],"additionalProperties":false})";
const std::string kWeather = R"({"type":"function","function":{"name":"weather","strict":true,)"
                             R"("description":"The weather of a city.",)"
                             R"("parameters":{"type":"object","properties":{"city":{"enum":)"
                             R"(["Oslo"]}},"required":["city"],"additionalProperties":false}}})";
const std::string kNow = R"({"type":"function","function":{"name":"now"}})";

class Constraints : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      structured::require_grammars();
    } catch (const Error&) {
      GTEST_SKIP();  // tests/structured fails where they should be there
    }
  }
  static structured::GrammarStore::Options options() {
    return {.limits = {.seconds = 20, .program = STRATA_BINARY},
            .space = SharedLimit(int64_t{64} << 20)};
  }
};

struct Served {
  explicit Served(const structured::GrammarStore::Options& options, bool has_threads = false,
                  const ServedText& text = bundled_text())
      : store(options), house({}, text, ServiceOptions(), has_threads, &store) {}
  structured::GrammarStore store;
  OpenAiHouse house;
};

std::string response_format(const std::string& schema, const std::string& more = "") {
  return R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" + schema +
         more + "}}";
}

// Whether the i-th command's answers may be this text, then the end of the turn.
bool fits(OpenAiHouse& house, const std::string& text, size_t i = 0) {
  const api::Sample& sample = house.sample(i);
  if (sample.grammar == nullptr) return false;
  structured::Matcher matcher = sample.grammar->start(sample.stop);
  for (const int32_t token : OpenAiHouse::tokens(text))
    if (!matcher.accept(token)) return false;
  return matcher.accept(4072) && matcher.is_ended();
}

struct Asked {
  const char* what;
  std::string fields, fit, other;
};

TEST_F(Constraints, EachFieldIsWhatItsAnswersFit) {
  const Asked kAsked[] = {
      {"a schema", response_format(kPerson), R"({"name": "Ada"})", R"({"name": "Eve"})"},
      {"a strict schema", response_format(kPerson, R"(,"strict":true)"), R"({"name": "Bob"})",
       "{}"},
      {"any object", R"("response_format":{"type":"json_object"})", R"({"a": [1]})", "[1]"},
      {"vLLM's schema", R"("structured_outputs":{"json":)" + kPerson + "}", R"({"name": "Ada"})",
       "7"},
      {"vLLM's schema as text", R"("structured_outputs":{"json":"{\"const\": 7}"})", "7", "8"},
      {"vLLM's object", R"("structured_outputs":{"json_object":true})", "{}", "8"},
      {"a regular expression", R"("structured_outputs":{"regex":"[ab]+-7"})", "abba-7", "c-7"},
      {"rules",
       R"js("structured_outputs":{"grammar":"root ::= word+\nword ::= \"ja\" | \"no\""})js",
       "janoja", "j"},
      {"a choice", R"("structured_outputs":{"choice":["yes","no \"way\""]})", "no \"way\"", "no"},
  };
  for (const Asked& asked : kAsked) {
    SCOPED_TRACE(asked.what);
    for (const bool is_chat : {true, false}) {
      Served served(options());
      const auto answer = is_chat ? served.house.chat(kHello + "," + asked.fields)
                                  : served.house.complete(R"("prompt":"x",)" + asked.fields);
      ASSERT_EQ(answer->response.status, 0) << answer->response.bytes();
      EXPECT_TRUE(fits(served.house, asked.fit));
      EXPECT_FALSE(fits(served.house, asked.other));
      served.house.settle(0, {asked.fit});
      const json::value whole = answer->json();
      const json::value& choice = whole.at("choices").at(0);
      const json::value& got = is_chat ? choice.at("message").at("content") : choice.at("text");
      EXPECT_EQ(json::value_to<std::string>(got), asked.fit);
      EXPECT_FALSE(whole.as_object().contains("warnings"));
    }
  }
  Served text(options());
  text.house.chat(kHello + R"(,"response_format":{"type":"text"})");
  EXPECT_EQ(text.house.sample().grammar, nullptr);
}

TEST_F(Constraints, EverySampleOfARequestHasIt) {
  Served served(options());
  served.house.complete(R"("prompt":["a","b"],"n":2,)" + response_format(kPerson));
  ASSERT_EQ(served.house.house.submitted.size(), 2u);
  EXPECT_TRUE(fits(served.house, R"({"name": "Ada"})", 1));
  EXPECT_EQ(served.store.counts().compiles, 1);
  served.house.chat(kHello + "," + response_format(kPerson));
  EXPECT_EQ(served.store.counts().compiles, 1);
  EXPECT_EQ(served.store.counts().hits, 1);
}

// Where the template opens a thought, what fits begins behind it.
TEST_F(Constraints, BeginBehindAThought) {
  ServedText text = bundled_text();
  text.chat = text::ChatTemplate::parse(
      "{{ messages[0].content }}<think>\n{# </think> <tool_call> #}{{ '</think>'[:0] }}");
  Served served(options(), false, text);
  const auto answer = served.house.chat(kHello + "," + response_format(kPerson));
  ASSERT_EQ(answer->response.status, 0) << answer->response.bytes();
  EXPECT_TRUE(fits(served.house, "hm {}</think>\n\n{\"name\": \"Ada\"}"));
  EXPECT_FALSE(fits(served.house, "hm"));
  EXPECT_FALSE(fits(served.house, "hm</think>\n\nno"));
}

struct Refused {
  std::string fields;
  const char *param, *message;
};

TEST_F(Constraints, WhatIsRefusedIsNamed) {
  const std::string strict = R"(,"strict":true)";
  const Refused kRefused[] = {
      {R"("response_format":{"type":"structural_tag"})", "response_format",
       "'structural_tag' is not supported"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema", "required"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})",
       "response_format.json_schema.name", "required"},
      {response_format(R"({"type":"strin"})"), "response_format.json_schema.schema", "#/type: got"},
      {response_format("7"), "response_format.json_schema.schema", "want a schema"},
      {response_format(R"({"type":"object"})", strict), "response_format.json_schema.schema",
       "#: strict: an object wants"},
      {response_format(
           R"({"type":"object","properties":{"a":{"type":"string","not":{}}},"required":["a"],)"
           R"("additionalProperties":false})",
           strict),
       "response_format.json_schema.schema", "#/properties/a/not: the keyword 'not'"},
      {response_format(R"({"type":"integer","minimum":3,"maximum":2})"),
       "response_format.json_schema.schema", "minimum greater than maximum"},
      {R"("structured_outputs":{})", "structured_outputs", "names 0 of"},
      {R"("structured_outputs":{"regex":"a","json_object":true})", "structured_outputs",
       "names 2 of"},
      {R"("structured_outputs":{"structural_tag":"{}"})", "structured_outputs.structural_tag",
       "is not supported"},
      {R"("structured_outputs":{"whitespace_pattern":" "})",
       "structured_outputs.whitespace_pattern", "is not supported"},
      {R"("structured_outputs":{"grammar":"start: \"a\""})", "structured_outputs.grammar", "Lark"},
      {R"("structured_outputs":{"grammar":"root ::= other"})", "structured_outputs.grammar", ""},
      {R"("structured_outputs":{"regex":"(a"})", "structured_outputs.regex", ""},
      {R"("structured_outputs":{"choice":[]})", "structured_outputs.choice", "has 0 texts"},
      {R"("structured_outputs":{"json":"{"})", "structured_outputs.json", "no JSON"},
      {R"("structured_outputs":{"regex":"a"},)" + response_format("{}"), "structured_outputs",
       "next to response_format"},
      {R"("tool_choice":"required")", "tool_choice", "there are no tools"},
      {R"("tool_choice":"any")", "tool_choice", "'any' is not supported"},
      {R"("tool_choice":{"type":"allowed_tools"})", "tool_choice", "'allowed_tools'"},
      {R"("tool_choice":{"type":"function","function":{"name":"no"}},"tools":[)" + kNow + "]",
       "tool_choice", "no tool is called 'no'"},
      {R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":)"
       R"({"type":"object"}}}])",
       "tools[0].function.parameters", "strict: an object wants"},
      {R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"a b"}}])",
       "tools[0].function.name", "other characters"},
  };
  for (const auto& [fields, param, message] : kRefused) {
    SCOPED_TRACE(fields);
    Served served(options());
    const auto answer = served.house.chat(kHello + "," + fields);
    ASSERT_EQ(answer->response.status, 400) << answer->response.bytes();
    EXPECT_EQ(answer->error("param"), param);
    EXPECT_THAT(answer->error("message"), HasSubstr(message));
    EXPECT_TRUE(served.house.house.submitted.empty());
  }
}

// Without "strict": true, what no grammar keeps is passed over, and said.
TEST_F(Constraints, WhatIsPassedOverIsSaid) {
  const std::string schema = R"({"type":"integer","not":{"const":3},"multipleOf":4096})";
  Served served(options());
  const auto answer = served.house.chat(kHello + "," + response_format(schema));
  served.house.settle(0, {"7"});
  const json::value got = answer->json();
  const json::array& warnings = got.at("warnings").as_array();
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(std::string(warnings[0].as_string()), HasSubstr("#/not: the keyword 'not'"));
  EXPECT_THAT(std::string(warnings[1].as_string()), HasSubstr("multipleOf"));
}

TEST_F(Constraints, ACompileThatTakesTooLongIsTheFieldsFault) {
  structured::GrammarStore::Options limited = options();
  limited.limits.seconds = 0.1;
  Served served(limited);
  std::string properties;
  for (int i = 0; i < 50; ++i) {
    std::string array = R"({"type":"integer","minimum":-)" + std::to_string(100000000000000 + i) +
                        R"(,"maximum":)" + std::to_string(1000000000000000 + 7 * i) + "}";
    for (int level = 0; level < 18; ++level)
      array = R"({"type":"array","items":)" + array + R"(,"minItems":1,"maxItems":500})";
    properties += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + "\":" + array;
  }
  const auto answer = served.house.chat(
      kHello + "," + response_format(R"({"type":"object","properties":{)" + properties + "}}"));
  ASSERT_EQ(answer->response.status, 400);
  EXPECT_EQ(answer->error("code"), "schema_too_complex");
  EXPECT_THAT(answer->error("message"), HasSubstr("--schema-seconds"));
  EXPECT_EQ(served.store.counts().faults[size_t(structured::GrammarFault::kSeconds)], 1);
}

TEST_F(Constraints, WhoHasNoSpaceComesAgain) {
  structured::GrammarStore::Options limited = options();
  limited.space = SharedLimit(1000);
  Served served(limited);
  const auto answer = served.house.chat(kHello + "," + response_format("{}"));
  EXPECT_EQ(answer->response.status, 429);
  EXPECT_THAT(answer->error("message"), HasSubstr("--max-schema-bytes"));
}

// A server without grammars says so.
TEST_F(Constraints, AreRefusedWhereThereAreNone) {
  OpenAiHouse house;
  const auto answer = house.chat(kHello + "," + response_format("{}"));
  EXPECT_EQ(answer->response.status, 400);
  EXPECT_THAT(answer->error("message"), HasSubstr("makes no grammars"));
}

// The thread of a request does not wait for its compile, and a client that leaves before it has
// begun has none.
TEST_F(Constraints, CompilesOnAThreadOfItsOwn) {
  Served served(options(), /*has_threads=*/true);
  OpenAiHouse& house = served.house;
  const auto answer = house.chat(kHello + "," + response_format(kPerson));
  EXPECT_TRUE(house.house.submitted.empty());
  ASSERT_EQ(house.compiles.size(), 1u);
  house.run(house.compiles);
  EXPECT_TRUE(house.house.submitted.empty());
  house.run_all();
  ASSERT_EQ(house.house.submitted.size(), 1u);
  house.chat(kHello + "," + response_format(kPerson));  // it is there by now
  EXPECT_EQ(house.house.submitted.size(), 2u);
  const auto left = house.chat(kHello + "," + response_format("true"));
  ASSERT_EQ(house.compiles.size(), 1u);
  (*house.hang_up)();
  house.run(house.compiles);
  house.run_all();
  EXPECT_EQ(house.house.submitted.size(), 2u);
  EXPECT_EQ(served.store.counts().compiles, 1);
  house.takes_compiles = false;
  EXPECT_EQ(house.chat(kHello + "," + response_format("false"))->response.status, 429);
}

std::string call_of(const std::string& name, const std::string& arguments) {
  return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments +
         "}\n</tool_call>";
}

TEST_F(Constraints, ToolsAreCalledAsTheChoiceSays) {
  const std::string tools = R"("tools":[)" + kWeather + "," + kNow + "]";
  const std::string oslo = call_of("weather", R"({"city": "Oslo"})"), now = call_of("now", "{}");
  const std::string rome = call_of("weather", R"({"city": "Rome"})");
  Served required(options());
  required.house.chat(kHello + "," + tools + R"(,"tool_choice":"required")");
  EXPECT_TRUE(fits(required.house, oslo));
  EXPECT_TRUE(fits(required.house, now + "\n" + oslo));
  EXPECT_FALSE(fits(required.house, rome));
  EXPECT_FALSE(fits(required.house, "Hello."));
  Served one(options());
  one.house.chat(kHello + "," + tools + R"(,"tool_choice":"required","parallel_tool_calls":false)");
  EXPECT_TRUE(fits(one.house, oslo));
  EXPECT_FALSE(fits(one.house, now + "\n" + oslo));
  Served named(options());
  const auto answer = named.house.chat(
      kHello + "," + tools + R"(,"tool_choice":{"type":"function","function":{"name":"now"}})");
  EXPECT_TRUE(fits(named.house, now));
  EXPECT_FALSE(fits(named.house, oslo));
  named.house.settle(0, {now});
  const json::value got = answer->json();
  const json::value& message = got.at("choices").at(0).at("message");
  EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("name"), "now");
  Served strict(options());  // auto, with one that is strict
  strict.house.chat(kHello + "," + tools);
  EXPECT_TRUE(fits(strict.house, "Hello."));
  EXPECT_TRUE(fits(strict.house, "I look. " + oslo));
  EXPECT_FALSE(fits(strict.house, "I look. " + rome));
  Served loose(options());
  loose.house.chat(kHello + R"(,"tools":[)" + kNow + "]");
  EXPECT_EQ(loose.house.sample().grammar, nullptr);
  Served none(options());
  none.house.chat(kHello + "," + tools + R"(,"tool_choice":"none")");
  EXPECT_EQ(none.house.sample().grammar, nullptr);
  Served schema(options());  // calls, or what fits the schema
  schema.house.chat(kHello + R"(,"tools":[)" + kNow + "]," + response_format(kPerson));
  EXPECT_TRUE(fits(schema.house, now));
  EXPECT_TRUE(fits(schema.house, R"({"name": "Ada"})"));
  EXPECT_FALSE(fits(schema.house, "Hello."));
}

// Of a model that answers in channels the last message fits, behind any thought.
TEST_F(Constraints, AnswersInChannelsHaveThem) {
  ServedText text = bundled_text();
  text.chat = text::ChatTemplate::parse(
      read_file(STRATA_SOURCE_DIR "/tests/data/third_party/templates/gptoss.jinja", 1 << 20));
  const std::string thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
  const std::string answer = R"(<|channel|>final<|message|>{"name": "Ada"})";
  const std::string called = R"(<|channel|>commentary to=functions.weather <|constrain|>json)"
                             R"(<|message|>{"city": "Oslo"})";
  const std::string free = "<|channel|>final<|message|>It rains.";
  const std::string tools = R"("tools":[)" + kWeather + "]";
  struct {
    std::string fields;
    bool takes_answer, takes_call, takes_free;
  } const kAsked[] = {
      {response_format(kPerson), true, false, false},
      {tools + R"(,"tool_choice":"required")", false, true, false},
      {tools + R"(,"tool_choice":{"type":"function","function":{"name":"weather"}})", false, true,
       false},
      {tools + "," + response_format(kPerson), true, true, false},
      {tools, true, true, true},
      {R"("structured_outputs":{"choice":["It rains.","No."]})", false, false, true},
  };
  for (const auto& asked : kAsked) {
    SCOPED_TRACE(asked.fields);
    Served served(options(), false, text);
    const auto got = served.house.chat(kHello + "," + asked.fields);
    ASSERT_EQ(got->response.status, 0) << got->response.bytes();
    EXPECT_EQ(fits(served.house, thought + answer), asked.takes_answer);
    EXPECT_EQ(fits(served.house, thought + called), asked.takes_call);
    EXPECT_EQ(fits(served.house, thought + free), asked.takes_free);
    EXPECT_FALSE(fits(served.house, R"({"name": "Ada"})"));
  }
  Served lenient(options(), false, text);
  const auto got = lenient.house.chat(kHello + "," + response_format(R"({"const":7,"not":{}})"));
  lenient.house.settle(0, {"<|channel|>final<|message|>7"});
  const json::value whole = got->json();
  EXPECT_EQ(whole.at("warnings").as_array().size(), 1u);
  EXPECT_EQ(whole.at("choices").at(0).at("message").at("content"), "7");
}

std::string asample_body(OpenAiHouse& of, const std::string& fields, const std::string& params) {
  House& house = of.house;
  const std::string session = house.session();
  const std::string sampler =
      House::text(house.post("create_sampling_session",
                             R"({"session_id":")" + session +
                                 R"(","sampling_session_seq_id":0,"base_model":"tiny"})"),
                  "sampling_session_id");
  return R"({"sampling_session_id":")" + sampler +
         R"(","seq_id":1,"prompt":{"chunks":[{"type":"encoded_text","tokens":[5,9]}]},)" + fields +
         R"(,"sampling_params":{)" + params + "}}";
}

// asample has vLLM's field too, as an extension; an end token is what the sample stops at.
TEST_F(Constraints, SamplesByTokenIdsHaveThem) {
  for (const bool has_threads : {false, true}) {
    Served served(options(), has_threads);
    OpenAiHouse& house = served.house;
    const std::string body = asample_body(house, R"("structured_outputs":{"json":)" + kPerson + "}",
                                          R"("max_tokens":9,"stop":[7])");
    const Response answer = house.house.post("asample", body);
    if (has_threads) {
      EXPECT_EQ(answer.status, 0);
      EXPECT_TRUE(house.house.submitted.empty());
      house.run(house.compiles);
      house.run_all();
    } else {
      EXPECT_EQ(answer.status, 200) << answer.body;
    }
    ASSERT_EQ(house.house.submitted.size(), 1u);
    ASSERT_NE(house.sample().grammar, nullptr);
    structured::Matcher matcher = house.sample().grammar->start(house.sample().stop);
    EXPECT_FALSE(matcher.accept(7));
    for (const int32_t token : OpenAiHouse::tokens(R"({"name": "Bob"})"))
      EXPECT_TRUE(matcher.accept(token));
    EXPECT_TRUE(matcher.accept(7));
    // Sent again, it is answered as it was.
    EXPECT_THAT(house.house.post("asample", body).body, HasSubstr(":1:0\""));
    EXPECT_EQ(house.house.submitted.size(), 1u);
    EXPECT_EQ(served.store.counts().compiles, 1);
  }
}

TEST_F(Constraints, SamplesByTokenIdsAreRefusedByTheField) {
  const std::string any = R"("structured_outputs":{"json_object":true})";
  const std::pair<std::pair<std::string, std::string>, const char*> kRefused[] = {
      {{R"("structured_outputs":7)", ""}, "structured_outputs"},
      {{R"("structured_outputs":{"lark":"x"})", ""}, "structured_outputs.lark"},
      {{R"("structured_outputs":{"json":{"not":{}},"regex":"a"})", ""},
       "structured_outputs: names 2"},
      {{R"("structured_outputs":{"regex":"(("})", ""}, "structured_outputs.regex"},
      {{any, R"("stop":[])"}, "sampling_params.stop is []"},
      {{any + R"(,"prompt_logprobs":true)", R"("max_tokens":1)"}, "the prompt alone"},
      {{R"("structured_outputs":{"regex":")" + std::string(600000, 'a') + R"("})", ""},
       "600012 bytes, want at most 524288"},
  };
  for (const auto& [asked, why] : kRefused) {
    Served served(options());
    const Response answer =
        served.house.house.post("asample", asample_body(served.house, asked.first, asked.second));
    EXPECT_EQ(answer.status, 400) << why;
    EXPECT_THAT(answer.body, HasSubstr(why));
    EXPECT_THAT(answer.body, HasSubstr("structured_outputs"));
    EXPECT_TRUE(served.house.house.submitted.empty());
  }
}

// A text of a schema is held to the levels of a schema, and the message says so.
TEST_F(Constraints, ADeepTextIsTooDeep) {
  for (const int levels : {40, 70}) {
    std::string schema = "{}";
    for (int i = 0; i < levels; ++i) schema = R"({\"items\":)" + schema + "}";
    Served served(options());
    const auto answer = served.house.chat(
        kHello + R"(,"structured_outputs":{"json":"{\"type\":\"array\",\"items\":)" + schema +
        R"(}"})");
    EXPECT_EQ(answer->response.status, levels == 40 ? 0 : 400) << answer->response.bytes();
    if (levels == 70) {
      EXPECT_THAT(answer->error("message"), HasSubstr("64 levels"));
    }
  }
}

}  // namespace
}  // namespace strata::server
