// SPDX-License-Identifier: Apache-2.0
#include "data/example.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "tests/text/start_token.h"
#include "text/chat_template.h"

namespace strata::data {
namespace {

const std::string kModel = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";

// A ChatML renderer written for these tests; `quirk` changes earlier assistant turns once a later
// turn exists, as templates that drop old thinking do.
std::string chatml(const std::string& messages, const std::string& tools, bool with_prompt,
                   bool quirk) {
  std::string out = tools.empty() ? "" : "<|im_start|>system\n" + tools + "<|im_end|>\n";
  const boost::json::array turns = boost::json::parse(messages).as_array();
  for (size_t i = 0; i < turns.size(); ++i) {
    const auto& turn = turns[i].as_object();
    std::string content(turn.at("content").as_string());
    if (quirk && turn.at("role") == "assistant" && i + 1 < turns.size())
      content = "(old) " + content;
    out +=
        "<|im_start|>" + std::string(turn.at("role").as_string()) + "\n" + content + "<|im_end|>\n";
  }
  return out + (with_prompt ? "<|im_start|>assistant\n" : "");
}

class ExampleTest : public testing::Test {
 protected:
  Example make(const std::string& line, TrainOn train_on = TrainOn::kLast, bool quirk = false) {
    const auto render = [quirk](const text::ChatRequest& request) {
      return text::RenderedChat{
          .text = chatml(request.messages, request.tools, request.add_generation_prompt, quirk)};
    };
    const ExampleContext context{
        .tokenizer = tokenizer_, .end_tokens = end_, .render = render, .train_on = train_on};
    return make_example(line, context, ignored_);
  }
  std::string fault(const std::string& line, TrainOn train_on = TrainOn::kLast,
                    bool quirk = false) {
    try {
      make(line, train_on, quirk);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  // The text of the trained targets, and of all tokens.
  std::string trained(const Example& example) {
    std::vector<int32_t> ids;
    for (size_t t = 0; t < example.targets.size(); ++t) {
      if (example.weights[t] == 1) ids.push_back(example.targets[t]);
    }
    return tokenizer_.decode(ids);
  }
  std::string whole(const Example& example) {
    std::vector<int32_t> ids = example.tokens;
    ids.push_back(example.targets.back());
    return tokenizer_.decode(ids);
  }

  const text::Tokenizer tokenizer_ = text::Tokenizer::load(kModel);
  const EndTokens end_ = load_end_tokens(kModel, tokenizer_);
  std::vector<std::string> ignored_;
};

TEST_F(ExampleTest, EndTokensComeFromTheDirectory) {
  EXPECT_EQ(end_.append, tokenizer_.token_to_id("<|im_end|>"));
  EXPECT_EQ(end_.stop, (std::vector<int32_t>{*tokenizer_.token_to_id("<|endoftext|>"),
                                             *tokenizer_.token_to_id("<|im_end|>")}));
}

TEST_F(ExampleTest, TextTrainsAllAndEnds) {
  const Example example = make(R"({"text": "seven plus two is nine."})");
  std::vector<int32_t> ids = tokenizer_.encode("seven plus two is nine.");
  ids.push_back(end_.append);
  EXPECT_EQ(example.tokens, std::vector<int32_t>(ids.begin(), ids.end() - 1));
  EXPECT_EQ(example.targets, std::vector<int32_t>(ids.begin() + 1, ids.end()));
  EXPECT_EQ(example.weights, std::vector<float>(ids.size() - 1, 1.0f));
  EXPECT_EQ(example.num_trained, static_cast<int64_t>(ids.size()) - 1);
}

TEST_F(ExampleTest, AnEndTokenInTheTextIsNotDoubled) {
  const Example example = make(R"({"text": "nine<|endoftext|>"})");
  EXPECT_EQ(whole(example), "nine<|endoftext|>");
}

TEST_F(ExampleTest, AStartTokenInTheTextIsNotDoubled) {
  const text::Tokenizer adds = text::load_with_start_token(kModel, "<|im_start|>");
  int64_t num_doubled = 0;
  const auto render = [](const text::ChatRequest&) { return text::RenderedChat(); };
  const ExampleContext context{
      .tokenizer = adds, .end_tokens = end_, .render = render, .num_doubled_starts = &num_doubled};
  const Example plain = make_example(R"({"text": "nine"})", context, ignored_);
  EXPECT_EQ(whole(plain), "<|im_start|>nine<|im_end|>");
  EXPECT_EQ(num_doubled, 0);
  const Example with = make_example(R"({"text": "<|im_start|>nine"})", context, ignored_);
  EXPECT_EQ(with.tokens, plain.tokens);
  EXPECT_EQ(with.targets, plain.targets);
  const Example pair =
      make_example(R"({"prompt": "<|im_start|>What?", "completion": " nine"})", context, ignored_);
  EXPECT_EQ(whole(pair), "<|im_start|>What? nine<|im_end|>");
  EXPECT_EQ(trained(pair), " nine<|im_end|>");
  EXPECT_EQ(num_doubled, 2);
}

TEST_F(ExampleTest, CompletionTrainsCompletionAndEnd) {
  const Example example =
      make(R"({"prompt": "What is 3 plus 4?", "completion": " 3 plus 4 is 7."})");
  EXPECT_EQ(whole(example), "What is 3 plus 4? 3 plus 4 is 7.<|im_end|>");
  EXPECT_EQ(trained(example), " 3 plus 4 is 7.<|im_end|>");
}

TEST_F(ExampleTest, ATokenThatStraddlesTheBorderIsTrained) {
  // "A: " + "seven" is encoded once: " seven" is one token and holds the completion.
  const Example example = make(R"({"prompt": "A: ", "completion": "seven"})");
  EXPECT_EQ(trained(example), " seven<|im_end|>");
}

TEST_F(ExampleTest, NothingOfAnEmptyCompletionIsTrainedButTheEnd) {
  EXPECT_EQ(trained(make(R"({"prompt": "Yes", "completion": ""})")), "<|im_end|>");
}

TEST_F(ExampleTest, LastTurnOnly) {
  const Example example = make(
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"},
          {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Goodbye!"}]})");
  EXPECT_EQ(trained(example), "Goodbye!<|im_end|>\n");
  EXPECT_TRUE(whole(example).starts_with("<|im_start|>user\nHi<|im_end|>\n"));
}

TEST_F(ExampleTest, AllTurns) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"},
          {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Goodbye!"}]})";
  EXPECT_EQ(trained(make(line, TrainOn::kAll)), "Hello!<|im_end|>\nGoodbye!<|im_end|>\n");
  // Of a template that writes turns of the past in another way than the last one.
  EXPECT_EQ(trained(make(line, TrainOn::kAll, /*quirk=*/true)),
            "(old) Hello!<|im_end|>\nGoodbye!<|im_end|>\n");
  EXPECT_EQ(trained(make(line, TrainOn::kLast, /*quirk=*/true)), "Goodbye!<|im_end|>\n");
}

// The templates of real families, which trim an answer, move the system text, or drop it.
class TemplateExampleTest : public ExampleTest {
 protected:
  // What is trained of a conversation, or the fault; `path` is below tests/data.
  std::string trained_by(const std::string& path, const std::string& line,
                         TrainOn train_on = TrainOn::kLast) {
    const std::string file = std::string(STRATA_SOURCE_DIR) + "/tests/data/" + path + ".jinja";
    const auto chat = text::ChatTemplate::parse(read_file(file, 1 << 20),
                                                R"({"bos_token":"<bos>","eos_token":"<eos>"})");
    const auto render = [&](const text::ChatRequest& request) {
      return chat.render_marked(request);
    };
    const ExampleContext context{.tokenizer = tokenizer_,
                                 .end_tokens = end_,
                                 .render = render,
                                 .train_on = train_on,
                                 .form = chat.conversation_form()};
    try {
      return trained(make_example(line, context, ignored_));
    } catch (const Error& error) {
      return error.what();
    }
  }

  const std::string turns_ =
      R"({"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Hello! "},
         {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Goodbye!"}]})";
  const std::string plain_ = R"({"messages": [)" + turns_;
  const std::string system_ =
      R"({"messages": [{"role": "system", "content": "Be brief."}, )" + turns_;
};

TEST_F(TemplateExampleTest, TurnsEndAsTheTemplateEndsThem) {
  for (const std::string& line : {plain_, system_}) {
    EXPECT_EQ(trained_by("text/templates/gemma3", line), "Goodbye!<end_of_turn>\n");
    EXPECT_EQ(trained_by("text/templates/gemma3", line, TrainOn::kAll),
              "Hello!<end_of_turn>\nGoodbye!<end_of_turn>\n");
    EXPECT_EQ(trained_by("third_party/templates/qwen25", line, TrainOn::kAll),
              " Hello! <|im_end|>\nGoodbye!<|im_end|>\n");
    EXPECT_EQ(trained_by("third_party/templates/mistral_v1", line, TrainOn::kAll),
              "  Hello! <eos> Goodbye!<eos>");
    EXPECT_EQ(trained_by("third_party/templates/mistral_v7", line, TrainOn::kAll),
              " Hello! <eos>Goodbye!<eos>");
  }
  EXPECT_EQ(trained_by("third_party/templates/mistral_v3", plain_, TrainOn::kAll),
            " Hello!<eos> Goodbye!<eos>");
  EXPECT_EQ(trained_by("third_party/templates/mistral_tekken", plain_, TrainOn::kAll),
            " Hello! <eos>Goodbye!<eos>");
}

TEST_F(TemplateExampleTest, ASystemTextThatTheTemplateDropsIsRefused) {
  for (const char* name : {"mistral_v3", "mistral_tekken"}) {
    const std::string refused = trained_by(std::string("third_party/templates/") + name, system_);
    EXPECT_TRUE(refused.starts_with("messages[0]: the chat template leaves")) << refused;
    EXPECT_TRUE(refused.ends_with("write its text into the user's turn")) << refused;
  }
}

TEST_F(ExampleTest, ToolsReachTheTemplate) {
  const Example example = make(
      R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "tools": [{"name": "f"}]})");
  EXPECT_TRUE(
      whole(example).starts_with("<|im_start|>system\n[{\"type\":\"function\","
                                 "\"function\":{\"name\":\"f\"}}]<|im_end|>\n"))
      << whole(example);
}

TEST_F(ExampleTest, OtherFieldsAreNotedOnce) {
  make(R"({"text": "a b", "id": 7, "source": "x"})");
  make(R"({"text": "a b", "id": 8})");
  EXPECT_EQ(ignored_, (std::vector<std::string>{"id", "source"}));
}

TEST_F(ExampleTest, AFaultNamesFieldGotAndWanted) {
  EXPECT_EQ(fault(R"({"text": "a", "text": "b"})"),
            "the record: JSON at byte 21: the key \"text\" appears twice in one object");
  EXPECT_TRUE(fault("{").starts_with("the record: "));
  EXPECT_TRUE(fault("{\"text\": \"\xff\"}").starts_with("the record: "));
  EXPECT_EQ(fault("[1]"), "got a list, want an object");
  EXPECT_EQ(
      fault("{}"),
      "want exactly one of prompt and completion, text, or messages; got none of them, but no "
      "field at all; or of Alpaca (instruction, output), ShareGPT (conversations); fields of "
      "other names are read with --fields, as in question=prompt,answer=completion");
  EXPECT_TRUE(fault(R"({"question": "a", "answer": "b"})").find("but question, answer; or") !=
              std::string::npos);
  EXPECT_THAT(fault(R"({"a,b": 1, "c,d": 1, "e,f": 1, "g": 1, "h": 1, "i": 1, "j": 1, "k": 1,
                       "l": 1})"),
              ::testing::HasSubstr("but a,b, c,d, e,f, g, h, i, j, k; or"));
  EXPECT_EQ(fault(R"({"text": "a", "messages": []})"),
            "want exactly one of prompt and completion, text, or messages; got more than one");
  EXPECT_EQ(fault(R"({"text": 7})"), "text: got a number, want a string");
  EXPECT_EQ(fault(R"({"prompt": "a"})"), "completion: missing, want a string");
  EXPECT_EQ(fault(R"({"completion": "a"})"), "prompt: missing, want a string");
  EXPECT_EQ(fault(R"({"prompt": "a", "completion": null})"), "completion: got null, want a string");
  EXPECT_EQ(fault(R"({"messages": {}})"), "messages: got an object, want a list");
  EXPECT_EQ(
      fault(R"({"messages": []})"),
      "messages: got no turn at the end, want a conversation that ends with an assistant turn");
  EXPECT_EQ(fault(R"({"messages": [{"role": "user", "content": "a"}]})"),
            "messages: got one of 'user' at the end, want a conversation that ends with an "
            "assistant turn");
  EXPECT_EQ(fault(R"({"messages": [7]})"), "messages[0]: got a number, want an object");
  EXPECT_EQ(fault(R"({"messages": [{"content": "a"}]})"),
            "messages[0].role: this field is required");
  EXPECT_EQ(fault(R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})"),
            "messages[0].content[0].text: this field is required");
  EXPECT_EQ(fault(R"({"messages": [{"role": "user"}]})"),
            "messages[0].content: this field is required: wanted a string or a list of parts");
  EXPECT_EQ(fault(R"({"messages": [{"role": "assistant", "content": "a"}], "tools": 3})"),
            "tools: wanted a list of tools");
  EXPECT_EQ(fault(R"({"text": ""})"), "nothing to train on: no token of the text is a target");
}

}  // namespace
}  // namespace strata::data
