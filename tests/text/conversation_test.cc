// SPDX-License-Identifier: Apache-2.0
// Conversations in the forms that people and trainers write them in, as templates get them: what
// transformers renders of the same ones in its own form (tools/golden/make_conversation_golden.py),
// and what is refused.
#include "text/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/text/golden.h"
#include "text/json_field.h"

namespace strata::text {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

constexpr char kTokens[] = R"({"bos_token":"<s>","eos_token":{"content":"</s>"}})";
constexpr const char* kNames[] = {"llama2",     "llama31",        "qwen25",     "qwen3",
                                  "qwen35",     "qwen35_nothink", "qwen36",     "qwen38",
                                  "smollm2",    "deepseek_v3",    "mistral_v1", "mistral_v3",
                                  "mistral_v7", "mistral_tekken"};

ChatTemplate template_of(const std::string& path) {
  return ChatTemplate::parse(
      read_file(std::string(STRATA_SOURCE_DIR) + "/tests/data/" + path + ".jinja", 1 << 20),
      kTokens);
}

json::array read(const json::array& messages, const ConversationForm& form = {},
                 Roles roles = Roles::kKnown) {
  ConversationReader reader(form, roles);
  size_t index = 0;
  for (const json::value& message : messages)
    reader.add(Fields(message.as_object(), "messages[" + std::to_string(index++) + "]."));
  return reader.take();
}

json::array read(const std::string& messages, const ConversationForm& form = {}) {
  return read(json::parse(messages).as_array(), form);
}

std::string fault(const std::string& messages) {
  try {
    read(messages);
  } catch (const FieldFault& fault) {
    return fault.what();
  }
  return "no fault";
}

std::string render_hash(const ChatTemplate& chat, const json::value& line, bool with_prompt) {
  try {
    json::array messages = read(line.at("messages").as_array(), chat.conversation_form());
    if (with_prompt) messages.pop_back();
    const json::value* tools = line.as_object().if_contains("tools");
    const std::string text = chat.render(
        {.messages = json::serialize(messages),
         .tools = tools == nullptr ? "" : json::serialize(normalized_tools(*tools, "tools")),
         .add_generation_prompt = with_prompt,
         .now = "2026-01-31"});
    char buffer[32];
    std::snprintf(buffer, sizeof(buffer), "%016llx", static_cast<unsigned long long>(fnv(text)));
    return buffer;
  } catch (const FieldFault& fault) {
    return fault.what();
  } catch (const Error&) {
    return "error";
  }
}

TEST(Conversation, EveryFormRendersAsTransformersRendersItsOwn) {
  std::vector<std::pair<std::string, ChatTemplate>> templates;
  for (const char* name : kNames)
    templates.emplace_back(name, template_of(std::string("third_party/templates/") + name));
  templates.emplace_back("gemma3", template_of("text/templates/gemma3"));
  int num_rendered = 0;
  const auto lines = read_lines("conversation_forms.jsonl");
  EXPECT_EQ(lines.size(), 60u);
  for (const json::value& line : lines) {
    for (const auto& [name, chat] : templates) {
      for (const bool with_prompt : {false, true}) {
        const std::string wanted = text_of(line.at("expect").at(name).at(with_prompt ? 1 : 0));
        EXPECT_EQ(render_hash(chat, line, with_prompt), wanted)
            << name << ": " << line.at("messages");
        num_rendered += wanted == "error" ? 0 : 1;
      }
    }
  }
  EXPECT_GT(num_rendered, 1400);
}

TEST(Conversation, ATemplateSaysHowItWantsCalls) {
  const auto form = [](const std::string& name) {
    const ConversationForm of = template_of("third_party/templates/" + name).conversation_form();
    return std::pair(of.arguments_as_text, of.id_length);
  };
  for (const char* name : {"qwen25", "qwen3", "qwen35", "qwen38", "llama31", "llama2", "smollm2"})
    EXPECT_EQ(form(name), std::pair(false, size_t{0})) << name;
  EXPECT_EQ(form("deepseek_v3"), std::pair(true, size_t{0}));
  for (const char* name : {"mistral_v3", "mistral_tekken"})
    EXPECT_EQ(form(name), std::pair(false, size_t{9})) << name;
  // Of no family: one that prints a dict as Python does, and one that wants ids of four.
  const std::string print =
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ "
      "c.function.arguments }}{% endfor %}{% endfor %}";
  EXPECT_TRUE(ChatTemplate::parse(print).conversation_form().arguments_as_text);
  EXPECT_EQ(ChatTemplate::parse("{% for m in messages %}{% for c in m.tool_calls or [] %}"
                                "{% if c.id | length != 4 %}{{ raise_exception('four') }}"
                                "{% endif %}{{ c.function.arguments | tojson }}"
                                "{% endfor %}{% endfor %}")
                .conversation_form()
                .id_length,
            4u);
}

// The template for requests with tools is another, which alone writes calls.
TEST(Conversation, ATemplateForToolsSaysHowItWantsCallsToo) {
  const std::string config = R"({"chat_template":[{"name":"default","template":"plain"},)"
                             R"({"name":"tool_use","template":"{% for m in messages %})"
                             R"({% for c in m.tool_calls or [] %}{{ '-' + c.function.arguments }})"
                             R"({% endfor %}{% endfor %}"}]})";
  const auto read = [&](std::string_view name) -> std::optional<std::string> {
    if (name == "tokenizer_config.json") return config;
    return std::nullopt;
  };
  const auto chat = ChatTemplate::load(ModelTexts("of a test", read));
  ASSERT_TRUE(chat);
  EXPECT_TRUE(chat->conversation_form().arguments_as_text);
}

TEST(Conversation, ATemplateSaysWhetherItWritesCalls) {
  for (const char* name : {"qwen25", "qwen35", "llama31", "deepseek_v3", "mistral_v3"}) {
    const auto chat = template_of(std::string("third_party/templates/") + name);
    EXPECT_TRUE(chat.conversation_form().writes_calls) << name;
  }
  for (const char* name : {"smollm2", "llama2", "mistral_v1"}) {
    const auto chat = template_of(std::string("third_party/templates/") + name);
    EXPECT_FALSE(chat.conversation_form().writes_calls) << name;
  }
  const auto v4 = [](std::string_view name) -> std::optional<std::string> {
    if (name == "config.json") return R"({"model_type":"deepseek_v4"})";
    return std::nullopt;
  };
  EXPECT_TRUE(ChatTemplate::load(ModelTexts("of a test", v4))->conversation_form().writes_calls);
}

TEST(Conversation, IdsGetTheTemplatesLengthAndResultsTheirCalls) {
  const std::string two =
      R"([{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"name":"a"},)"
      R"({"id":"call_12345678901","name":"b"},{"id":"x1","name":"c"}]},)"
      R"({"role":"tool","content":"1"},{"role":"tool","content":"2","tool_call_id":)"
      R"("call_12345678901"},{"role":"tool","content":"3"}])";
  const json::array nine = read(two, {.id_length = 9});
  const auto id = [&](size_t message) { return nine[message].at("tool_call_id"); };
  EXPECT_EQ(nine[1].at("tool_calls").at(1).at("id"), "345678901");
  EXPECT_EQ(nine[1].at("tool_calls").at(2).at("id"), "0000000x1");
  EXPECT_EQ(id(2), nine[1].at("tool_calls").at(0).at("id"));
  EXPECT_EQ(id(3), "345678901");
  EXPECT_EQ(id(4), "0000000x1");
  const json::array any = read(two);
  EXPECT_FALSE(any[1].at("tool_calls").at(0).as_object().contains("id"));
  EXPECT_EQ(any[1].at("tool_calls").at(1).at("id"), "call_12345678901");
}

TEST(Conversation, OtherFormsOfCallsReasoningAndResults) {
  const json::array said =
      read(R"([{"from":"human","value":"q"},{"from":"function_call","value":"{\"name\":\"f\",)"
           R"(\"arguments\":{\"a\":1}}"},{"role":"observation","content":{"t":[1,2.5]}},)"
           R"({"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text",)"
           R"("text":"a"},{"type":"text","text":"b"}],"weight":0,"prefix":true,"audio":null}])");
  EXPECT_EQ(said[1], json::parse(R"({"role":"assistant","content":"","tool_calls":[{"type":)"
                                 R"("function","function":{"name":"f","arguments":{"a":1}}}]})"));
  EXPECT_EQ(said[2], json::parse(R"({"role":"tool","content":"{\"t\": [1, 2.5]}"})"));
  EXPECT_EQ(said[3], json::parse(R"({"role":"assistant","content":"a\nb","reasoning_content":)"
                                 R"("hm","prefix":true})"));
  const json::array text =
      read(R"([{"role":"assistant","function_call":{"name":"f","arguments":"{\"a\":  1}"}},)"
           R"({"role":"assistant","function_call":{"name":"f","arguments":{"a":1}}}])",
           {.arguments_as_text = true});
  const auto arguments = [&](size_t message) {
    return text[message].at("tool_calls").at(0).at("function").at("arguments");
  };
  EXPECT_EQ(arguments(0), R"({"a":  1})");  // as it was written
  EXPECT_EQ(arguments(1), R"({"a": 1})");
}

// The first of the names counts, as in transformers, and an empty thought is one.
TEST(Conversation, ReasoningHasOneName) {
  const json::array said =
      read(R"([{"role":"assistant","content":"a","reasoning":"2","thinking":"1"},)"
           R"({"role":"assistant","content":"a","thinking":""},)"
           R"({"role":"assistant","content":"a","thinking":null}])");
  EXPECT_EQ(said[0], json::parse(R"({"role":"assistant","content":"a","reasoning_content":"1"})"));
  EXPECT_EQ(said[1], json::parse(R"({"role":"assistant","content":"a","reasoning_content":""})"));
  EXPECT_EQ(said[2], json::parse(R"({"role":"assistant","content":"a"})"));
}

TEST(Conversation, FaultsNameTheirField) {
  EXPECT_EQ(fault(R"([{"role":"robot","content":"x"}])"),
            "messages[0].role: got 'robot', wanted system, developer, user, assistant or tool");
  EXPECT_THAT(fault(R"([{"role":"assistant","tool_calls":[{"name":"f","arguments":"[1]"}]}])"),
              HasSubstr("messages[0].tool_calls[0].arguments: wanted an object or the JSON text"));
  EXPECT_THAT(fault(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f",)"
                    R"("arguments":"{"}}]}])"),
              HasSubstr("messages[0].tool_calls[0].function.arguments: wanted an object or its"));
  EXPECT_THAT(fault(R"([{"role":"assistant","tool_calls":"{"}])"),
              HasSubstr("messages[0].tool_calls: wanted a list of calls or its JSON text"));
  EXPECT_THAT(fault(R"([{"role":"assistant","tool_calls":[{"function":{"arguments":{}}}]}])"),
              HasSubstr("messages[0].tool_calls[0].function.name: this field is required"));
  EXPECT_THAT(fault(R"([{"role":"user","content":"x","tool_calls":[{"name":"f"}]}])"),
              HasSubstr("messages[0].tool_calls: calls of a turn of user"));
  EXPECT_THAT(fault(R"([{"role":"user","content":[{"type":"image_url"}]}])"),
              HasSubstr("messages[0].content[0].type: 'image_url' is not supported"));
  EXPECT_THAT(fault(R"([{"role":"user","content":null}])"),
              HasSubstr("messages[0].content: this field is required"));
}

TEST(Conversation, ToolsInEveryForm) {
  const json::value wanted = json::parse(
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])");
  for (const char* text :
       {R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])",
        R"([{"function":{"name":"f","parameters":{"type":"object"}}}])",
        R"([{"name":"f","parameters":{"type":"object"}}])",
        R"([{"name":"f","parameters":"{\"type\":\"object\"}"}])",
        R"({"name":"f","parameters":{"type":"object"},"description":null})",
        R"(["{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}"])",
        R"("[{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}]")"}) {
    EXPECT_EQ(json::value(normalized_tools(json::parse(text), "tools")), wanted) << text;
  }
  EXPECT_TRUE(normalized_tools(json::value(""), "tools").empty());
  EXPECT_TRUE(normalized_tools(json::value(nullptr), "tools").empty());
  EXPECT_THROW(normalized_tools(json::value(3), "tools"), FieldFault);
  EXPECT_THROW(normalized_tools(json::parse(R"([{"type":"retrieval"}])"), "tools"), FieldFault);
}

}  // namespace
}  // namespace strata::text
