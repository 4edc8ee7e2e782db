// SPDX-License-Identifier: Apache-2.0
// Which bytes of a chat are trained: by a template's own marks what transformers masks, by text the
// same, also where a template writes a turn of the past in another way, and without the turns that
// data marks as not to be trained on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "data/chat_example.h"
#include "data/example.h"
#include "text/chat_template.h"

namespace strata::data {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kSource = STRATA_SOURCE_DIR;
const std::string kModel = kSource + "/models/tiny-qwen3";
constexpr const char* kThinking[] = {"qwen3", "qwen35", "qwen35_nothink", "qwen36", "qwen38"};

text::ChatTemplate template_of(const std::string& path) {
  return text::ChatTemplate::parse(read_file(kSource + "/tests/data/" + path + ".jinja", 1 << 20),
                                   R"({"bos_token":"<|endoftext|>","eos_token":"<|im_end|>"})");
}

std::vector<json::value> lines_of(const std::string& path) {
  const std::string data = read_file(kSource + "/tests/data/" + path, 1 << 24);
  std::vector<json::value> out;
  for (size_t at = 0; at < data.size();) {
    const size_t end = data.find('\n', at);
    out.push_back(json::parse(data.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

class Answers : public testing::Test {
 protected:
  ReadRecord read(const text::ChatTemplate& chat, const std::string& line,
                  TrainOn train_on = TrainOn::kAll) {
    const auto render = [&](const text::ChatRequest& request) {
      return chat.render_marked(request);
    };
    const ExampleContext context{.tokenizer = tokenizer_,
                                 .end_tokens = end_,
                                 .render = render,
                                 .train_on = train_on,
                                 .form = chat.conversation_form()};
    return read_record(line, context, ignored_);
  }
  // The text of each run of trained tokens.
  std::vector<std::string> trained(const ReadRecord& record) {
    std::vector<std::string> out;
    bool was_trained = false;
    std::vector<int32_t> run;
    const Example& example = record.example;
    for (size_t t = 0; t <= example.targets.size(); ++t) {
      const bool is_trained = t < example.targets.size() && example.weights[t] == 1;
      if (is_trained) run.push_back(example.targets[t]);
      if (was_trained && !is_trained) {
        out.push_back(tokenizer_.decode(run));
        run.clear();
      }
      was_trained = is_trained;
    }
    return out;
  }
  std::vector<std::string> trained(const text::ChatTemplate& chat, const std::string& line,
                                   TrainOn train_on = TrainOn::kAll) {
    return trained(read(chat, line, train_on));
  }
  std::string fault(const text::ChatTemplate& chat, const std::string& line) {
    try {
      read(chat, line);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  const text::Tokenizer tokenizer_ = text::Tokenizer::load(kModel);
  const EndTokens end_ = load_end_tokens(kModel, tokenizer_);
  std::vector<std::string> ignored_;
};

std::vector<float> mask_of(const json::value& golden) {
  std::vector<float> mask(golden.at("tokens").to_number<size_t>());
  for (const json::value& run : golden.at("runs").as_array()) {
    for (auto t = run.at(0).to_number<size_t>(); t < run.at(1).to_number<size_t>(); ++t)
      mask[t] = 1;
  }
  return mask;
}

TEST_F(Answers, MarksOfATemplateAreTransformersMask) {
  const auto lines = lines_of("answer_masks.jsonl");
  ASSERT_EQ(lines.size(), 24u);
  for (const char* name :
       {"qwen25", "qwen3", "qwen35", "qwen35_nothink", "qwen36", "qwen38", "deepseek_v3"}) {
    const auto chat = template_of(std::string("third_party/training_templates/") + name);
    for (const json::value& line : lines) {
      const std::vector<float> mask = mask_of(line.at("masks").at(name));
      const Example example = read(chat, json::serialize(line)).example;
      // The first token is no target.
      EXPECT_EQ(example.weights, std::vector<float>(mask.begin() + 1, mask.end()))
          << name << ": " << line.at("messages");
    }
  }
}

// The answers' texts under a template.
std::vector<std::string> answers_of(const text::ChatTemplate& chat, const json::value& line) {
  const OwnRecord record;
  const ReadConversation read =
      read_conversation(line.as_object(), record, chat.conversation_form());
  const auto render = [&](const text::ChatRequest& request) { return chat.render_marked(request); };
  const ChatText text = render_answers(read, 0, TrainOn::kAll, render);
  EXPECT_THAT(text.not_found, IsEmpty());
  std::vector<std::string> out;
  for (const Target target : text.targets)
    out.push_back(text.rendered.text.substr(target.begin, target.end - target.begin));
  return out;
}

// What the two write differently: TRL's template of Qwen2.5 has the line break behind the role
// among what the model writes; those of thinking models write every turn's thought, of which the
// families' own leave out those of the past, or have the prompt write its beginning.
TEST_F(Answers, ByTextTheAnswersOfTheFamilysTemplateAreThoseOfTheMarks) {
  std::vector<std::string> names = {"qwen25"};
  names.insert(names.end(), std::begin(kThinking), std::end(kThinking));
  for (const std::string& name : names) {
    const auto own = template_of("third_party/templates/" + name);
    const auto marked = template_of("third_party/training_templates/" + name);
    for (const json::value& line : lines_of("answer_masks.jsonl")) {
      SCOPED_TRACE(name + ": " + json::serialize(line.at("messages")));
      const auto by_text = answers_of(own, line), by_marks = answers_of(marked, line);
      ASSERT_EQ(by_text.size(), by_marks.size());
      for (size_t i = 0; i < by_text.size(); ++i) {
        ASSERT_TRUE(by_marks[i].ends_with(by_text[i])) << by_text[i] << "\nin\n" << by_marks[i];
        const std::string more = by_marks[i].substr(0, by_marks[i].size() - by_text[i].size());
        if (name == "qwen25") {
          EXPECT_EQ(more, "\n");
        } else if (!more.empty()) {
          EXPECT_TRUE(more == "<think>\n" || more == "<think>\n\n" ||
                      more == "<think>\n\n</think>\n\n" ||
                      (more.starts_with("<think>\n") && more.ends_with("\n</think>\n\n")))
              << more;
        }
      }
    }
  }
}

const std::string kTwoThoughts =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!",)"
    R"( "reasoning_content": "One."}, {"role": "user", "content": "Bye"}, {"role": "assistant",)"
    R"( "content": "Goodbye!", "reasoning_content": "Two."}]})";

// The first thought is a turn of the past, which is written without it.
TEST_F(Answers, ReasoningIsTrainedWhereTheRenderHasIt) {
  for (const char* name : {"qwen35", "qwen36"}) {
    EXPECT_THAT(trained(template_of(std::string("third_party/templates/") + name), kTwoThoughts),
                ElementsAre("Hello!<|im_end|>\n", "Two.\n</think>\n\nGoodbye!<|im_end|>\n"))
        << name;
  }
  // Its prompt closes the thought, where the answer's goes on behind the opening mark.
  EXPECT_THAT(trained(template_of("third_party/templates/qwen35_nothink"), kTwoThoughts),
              ElementsAre("Hello!<|im_end|>\n", "Two.\n</think>\n\nGoodbye!<|im_end|>\n"));
  EXPECT_THAT(trained(template_of("third_party/templates/qwen38"), kTwoThoughts),
              ElementsAre("One.\n</think>\n\nHello!<|im_end|>\n",
                          "Two.\n</think>\n\nGoodbye!<|im_end|>\n"));
}

// Its middle turn is written only where something stands behind its text.
constexpr const char* kHides =
    "{% for m in messages %}{% if m.content != 'secret' %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST_F(Answers, AnAnswerThatCannotBeFoundShiftsNoOther) {
  const auto chat = text::ChatTemplate::parse(kHides);
  const ReadRecord record =
      read(chat, R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",)"
                 R"( "content": "one"}, {"role": "user", "content": "b"}, {"role": "assistant",)"
                 R"( "content": "secret"}, {"role": "user", "content": "c"},)"
                 R"( {"role": "assistant", "content": "three"}]})");
  EXPECT_THAT(trained(record), ElementsAre("one<|im_end|>\n", "three<|im_end|>\n"));
  EXPECT_THAT(record.not_found, ElementsAre(HasSubstr("messages[3]: ")));
  EXPECT_THAT(fault(chat, R"({"messages": [{"role": "user", "content": "a"}, {"role":)"
                          R"( "assistant", "content": "secret"}]})"),
              HasSubstr("messages[1]: "));
}

TEST_F(Answers, EqualTurnsAreToldApart) {
  // Of a template that writes the number of turns before each, so that no start is a prefix.
  const auto chat = text::ChatTemplate::parse(
      "{{ messages | length }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
      "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  EXPECT_THAT(trained(chat, R"({"messages": [{"role": "user", "content": "go"}, {"role":)"
                            R"( "assistant", "content": "go", "weight": 0}, {"role": "user",)"
                            R"( "content": "go"}, {"role": "assistant", "content": "go"}]})"),
              ElementsAre("go<|im_end|>\n"));
}

TEST_F(Answers, CallsThatATemplateDoesNotWriteAreAFault) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls":)"
      R"( [{"name": "f"}]}]})";
  EXPECT_THAT(fault(template_of("third_party/templates/smollm2"), line),
              HasSubstr("messages[1]: it calls tools, and the chat template writes no calls"));
  EXPECT_EQ(fault(template_of("third_party/templates/qwen25"), line), "no error");
}

class MarkedAnswers : public Answers {
 protected:
  const text::ChatTemplate chat_ = template_of("third_party/templates/qwen25");
  static std::string two(const std::string& first, const std::string& second,
                         const std::string& of_line = "", const std::string& of_user = "") {
    return R"({"messages": [{"role": "user", "content": "Hi")" + of_user +
           R"(}, {"role": "assistant", "content": "Hello!")" + first +
           R"(}, {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Goodbye!")" +
           second + "}]" + of_line + "}";
  }
};

TEST_F(MarkedAnswers, AreNotTrainedAndStayInThePrompt) {
  for (const char* mark :
       {R"(, "weight": 0)", R"(, "weight": 0.0)", R"(, "train": false)", R"(, "training": false)",
        R"(, "loss": false)", R"(, "label": false)", R"(, "masked": true)"}) {
    const ReadRecord record = read(chat_, two(mark, R"(, "weight": 1)"));
    EXPECT_THAT(trained(record), ElementsAre("Goodbye!<|im_end|>\n")) << mark;
    EXPECT_EQ(record.num_marked_out, 1) << mark;
    std::vector<int32_t> ids = record.example.tokens;
    EXPECT_THAT(tokenizer_.decode(ids), HasSubstr("Hello!")) << mark;
    EXPECT_FALSE(record.is_left_out);
  }
  EXPECT_EQ(trained(chat_, two("", "")),
            trained(chat_, two(R"(, "weight": 1)", R"(, "train": null)")));
  // With the last turn alone, its mark leaves nothing.
  EXPECT_TRUE(read(chat_, two("", R"(, "weight": 0)"), TrainOn::kLast).is_left_out);
}

TEST_F(MarkedAnswers, OfARecord) {
  EXPECT_TRUE(read(chat_, two("", "", R"(, "label": false)")).is_left_out);
  EXPECT_FALSE(read(chat_, two("", "", R"(, "label": true)")).is_left_out);
  EXPECT_TRUE(read(chat_, R"({"prompt": "a", "completion": "b", "label": 0})").is_left_out);
  EXPECT_TRUE(read(chat_, R"({"text": "a b", "train": "false"})").is_left_out);
  EXPECT_TRUE(read(chat_, R"({"prompt": "a", "completion": "b", "weight": 0})").is_left_out);
  EXPECT_THAT(ignored_, IsEmpty());
  // A text's class is no mark.
  EXPECT_FALSE(read(chat_, R"({"text": "a b", "label": 0})").is_left_out);
  EXPECT_THAT(ignored_, ElementsAre("label"));
}

TEST_F(MarkedAnswers, AnotherValueIsAFault) {
  EXPECT_THAT(fault(chat_, two(R"(, "weight": 0.5)", "")),
              HasSubstr("messages[1].weight: got 5E-1, wanted 0 or 1"));
  EXPECT_THAT(fault(chat_, two(R"(, "train": "no")", "")), HasSubstr("messages[1].train: got"));
  EXPECT_THAT(fault(chat_, two(R"(, "train_detail": [])", "")),
              HasSubstr("messages[1].train_detail: is not read"));
  EXPECT_THAT(fault(chat_, two("", "", "", R"(, "train": true)")),
              HasSubstr("messages[0].train: is set on a turn of user"));
  EXPECT_THAT(fault(chat_, R"({"prompt": "a", "completion": "b", "label": "good"})"),
              HasSubstr("label: got \"good\", wanted 0 or 1"));
}

TEST_F(Answers, VariablesOfARecordAndDatesReachTheTemplate) {
  const auto chat = text::ChatTemplate::parse(
      "{{ tone }} {{ strftime_now('%Y') }}\n{% for m in messages %}{{ m.content }}\n{% endfor %}");
  const auto of = [&](const std::string& vars) {
    return read(chat, R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",)"
                      R"( "content": "b"}], "chat_template_kwargs": )" +
                          vars + "}");
  };
  EXPECT_TRUE(of(R"({"tone": "calm"})").has_read_clock);
  const ReadRecord fixed = of(R"({"tone": "calm", "strftime_now": "1999-12-31"})");
  EXPECT_FALSE(fixed.has_read_clock);
  EXPECT_THAT(tokenizer_.decode(fixed.example.tokens), HasSubstr("calm 1999\n"));
}

}  // namespace
}  // namespace strata::data
