// SPDX-License-Identifier: Apache-2.0
// Every form that people have data in gives the tokens and masks of the same examples in our own
// JSONL.
#include <gmock/gmock.h>

#include "tests/data/data_fixture.h"

namespace strata::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class Forms : public DataTest {
 protected:
  // One line in a form of others, and the same in ours.
  void expect_same(const std::string& theirs, const std::string& ours,
                   TrainOn train_on = TrainOn::kLast, bool has_template = true) {
    SCOPED_TRACE(theirs);
    const ReadOptions options = {.max_length = 500};
    expect_equal(read({{write("theirs.jsonl", theirs + "\n")}}, options, train_on, has_template),
                 read({{write("ours.jsonl", ours + "\n")}}, options, train_on, has_template));
  }
  std::string fault_of(const std::string& line) {
    const std::string path = write("bad.jsonl", line + "\n");
    const std::string message = fault({{path}});
    EXPECT_THAT(message, StartsWith(path + ":1: "));
    return message.substr(path.size() + 4);
  }
};

// A line has no line ends: they are taken out of what is written over several.
std::string one_line(std::string text) {
  std::erase(text, '\n');
  return text;
}

TEST_F(Forms, AlpacaIsTurnsOfAModelWithATemplate) {
  expect_same(R"({"instruction": "Add.", "input": "1 2", "output": "3"})",
              one_line(R"({"messages": [{"role": "user", "content": "Add.\n1 2"},
{"role": "assistant", "content": "3"}]})"));
  for (const char* input : {"", R"("input": "", )", R"("input": null, )"}) {
    expect_same(std::string(R"({"instruction": "Add.", )") + input +
                    R"("output": "3", "text": "of the whole again"})",
                one_line(R"({"messages": [{"role": "user", "content": "Add."},
{"role": "assistant", "content": "3"}]})"));
  }
  expect_same(R"({"instruction": "b", "output": "c", "system": "s", "history": [["q", "a"]]})",
              one_line(R"({"messages": [{"role": "system", "content": "s"},
{"role": "user", "content": "q"},{"role": "assistant", "content": "a"},
{"role": "user", "content": "b"},{"role": "assistant", "content": "c"}]})"),
              TrainOn::kAll);
  // Dolly's names.
  expect_same(R"({"instruction": "Add.", "context": "1 2", "response": "3", "category": "sum"})",
              one_line(R"({"messages": [{"role": "user", "content": "Add.\n1 2"},
{"role": "assistant", "content": "3"}]})"));
}

TEST_F(Forms, AlpacaIsThePublishedPromptWithoutATemplate) {
  expect_same(R"({"instruction": "Add.", "input": "1 2", "output": "3"})",
              R"({"prompt": "Below is an instruction that describes a task, paired with an input )"
              R"(that provides further context. Write a response that appropriately completes the )"
              R"(request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n", )"
              R"("completion": "3"})",
              TrainOn::kLast, /*has_template=*/false);
  expect_same(
      R"({"instruction": "Add.", "output": "3"})",
      R"({"prompt": "Below is an instruction that describes a task. Write a response that )"
      R"(appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Response:\n", )"
      R"("completion": "3"})",
      TrainOn::kLast, /*has_template=*/false);
}

TEST_F(Forms, ShareGpt) {
  const std::string ours = one_line(R"({"messages": [{"role": "system", "content": "s"},
{"role": "user", "content": "a b"},{"role": "assistant", "content": "c"},
{"role": "user", "content": "d"},{"role": "assistant", "content": "e f"}]})");
  const std::string turns = R"([{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c"},
{"from": "user", "value": "d"}, {"from": "assistant", "value": "e f"}])";
  for (const TrainOn train_on : {TrainOn::kLast, TrainOn::kAll}) {
    expect_same(one_line(R"({"id": 7, "system": "s", "conversations": )" + turns + "}"), ours,
                train_on);
    expect_same(one_line(R"({"conversations": [{"from": "system", "value": "s"}, )" +
                         turns.substr(1) + "}"),
                ours, train_on);
    // Messages under that name.
    std::string named = ours;
    named.replace(named.find("messages"), 8, "conversations");
    expect_same(named, ours, train_on);
  }
  expect_same(
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "tools": "[{\"name\": \"f\"}]"})",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": [{"name": "f"}]})");
  EXPECT_EQ(fault_of(R"({"conversations": [{"from": "alien", "value": "a"}]})"),
            "conversations[0].from: got 'alien', wanted human, gpt, system or tool");
  EXPECT_EQ(fault_of(R"({"conversations": 3})"), "conversations: got a number, want a list");
  EXPECT_EQ(fault_of(R"({"conversations": [3]})"),
            "conversations[0]: got a number, want an object");
  EXPECT_EQ(fault_of(R"({"conversations": [{"from": "human"}]})"),
            "conversations[0].value: this field is required: wanted a string or a list of parts");
  EXPECT_EQ(fault_of(R"({"conversations": [{"from": "human", "value": "a"}]})"),
            "conversations: got one of 'user' at the end, want a conversation that ends with an "
            "assistant turn");
}

TEST_F(Forms, ListsOfTrlTrainTheirCompletionAlone) {
  const std::string lists = one_line(R"({"prompt": [{"role": "user", "content": "a"},
{"role": "assistant", "content": "b"},{"role": "user", "content": "c"}],
"completion": [{"role": "assistant", "content": "d"}]})");
  const std::string ours = one_line(R"({"messages": [{"role": "user", "content": "a"},
{"role": "assistant", "content": "b"},{"role": "user", "content": "c"},
{"role": "assistant", "content": "d"}]})");
  expect_same(lists, ours);
  const Dataset all = read({{write("l.jsonl", lists)}}, {.max_length = 500}, TrainOn::kAll);
  expect_equal(all, read({{write("o.jsonl", ours)}}));
  EXPECT_EQ(fault_of(R"({"prompt": [], "completion": "a"})"),
            "prompt and completion: got a list and a string; want two strings, or two lists of "
            "messages");
  EXPECT_EQ(
      fault_of(R"({"prompt": [], "completion": []})"),
      "messages: got no turn at the end, want a conversation that ends with an assistant turn");
}

TEST_F(Forms, MessagesMayHaveTheirPromptBesideThem) {
  expect_same(
      R"({"prompt": "a", "prompt_id": "x", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
}

// A pair, and its two answers in our own forms.
TEST_F(Forms, PairsAreReadAndNotTrainedOnAlone) {
  const std::string user = R"({"role": "user", "content": "a"})";
  const auto assistant = [](const char* text) {
    return std::string(R"({"role": "assistant", "content": ")") + text + "\"}";
  };
  const std::string chosen = "{\"messages\": [" + user + "," + assistant("b") + "]}";
  const std::string rejected = "{\"messages\": [" + user + "," + assistant("c") + "]}";
  const std::vector<std::array<std::string, 3>> pairs = {
      {R"({"prompt": "a", "chosen": " b", "rejected": " c"})",
       R"({"prompt": "a", "completion": " b"})", R"({"prompt": "a", "completion": " c"})"},
      {R"({"chosen": "a b", "rejected": "a c"})", R"({"prompt": "a", "completion": " b"})",
       R"({"prompt": "a", "completion": " c"})"},
      {"{\"prompt\": [" + user + "], \"chosen\": [" + assistant("b") + "], \"rejected\": [" +
           assistant("c") + "]}",
       chosen, rejected},
      {"{\"prompt\": \"a\", \"chosen\": [" + user + "," + assistant("b") + "], \"rejected\": [" +
           user + "," + assistant("c") + "]}",
       chosen, rejected},
      {R"({"conversations": [{"from": "human", "value": "a"}], "chosen": {"from": "gpt", "value": "b"}, "rejected": {"from": "gpt", "value": "c"}})",
       chosen, rejected},
      {R"({"instruction": "a", "chosen": "b", "rejected": "c"})", chosen, rejected}};
  const ExampleContext context{.tokenizer = tokenizer_, .end_tokens = end_, .render = kRender};
  for (const auto& [pair, first, second] : pairs) {
    SCOPED_TRACE(pair);
    std::vector<std::string> ignored;
    const ReadRecord record = read_record(pair, context, ignored);
    EXPECT_EQ(record.form, Form::kPreference);
    EXPECT_EQ(record.example.tokens, make_example(first, context, ignored).tokens);
    EXPECT_EQ(record.example.weights, make_example(first, context, ignored).weights);
    ASSERT_TRUE(record.rejected);
    EXPECT_EQ(record.rejected->tokens, make_example(second, context, ignored).tokens);
    EXPECT_EQ(record.rejected->weights, make_example(second, context, ignored).weights);
    EXPECT_TRUE(ignored.empty());
    EXPECT_THAT(
        fault_of(pair),
        HasSubstr("a preference pair (chosen, rejected): --loss dpo and orpo train on these"));
  }
  EXPECT_THAT(fault_of(R"({"chosen": "a", "rejected": "b"})"),
              HasSubstr("strata train --loss dpo (or orpo) trains on pairs; to train on the chosen "
                        "answers alone: jq"));
  EXPECT_EQ(fault_of(R"({"chosen": "a"})"), "rejected: missing, want a string or messages");
}

// What a form of pairs does not read is told, as of other forms.
TEST_F(Forms, FieldsThatAPairDoesNotReadAreNoted) {
  const ExampleContext context{.tokenizer = tokenizer_, .end_tokens = end_, .render = kRender};
  const auto ignored_of = [&](const std::string& pair) {
    std::vector<std::string> ignored;
    read_record(pair, context, ignored);
    return ignored;
  };
  const std::string answers = R"("chosen": "b", "rejected": "c"})";
  const std::string turns = R"("chosen": {"role": "assistant", "content": "b"},
                               "rejected": {"role": "assistant", "content": "c"}})";
  EXPECT_THAT(ignored_of(R"({"system": "s", "prompt": "a", "input": "i", )" + answers),
              ElementsAre("system", "input"));
  EXPECT_THAT(ignored_of(R"({"instruction": "a", "tools": [], )" + answers), ElementsAre("tools"));
  EXPECT_THAT(ignored_of(R"({"prompt": "a", "tools": [], )" + answers), ElementsAre("tools"));
  EXPECT_THAT(ignored_of(R"({"prompt": "a", "tools": [], )" + turns), IsEmpty());
  EXPECT_THAT(ignored_of(R"({"instruction": "a", "system": "s", "input": "i", )" + answers),
              IsEmpty());
}

TEST_F(Forms, PicturesAreNotJustLeftOut) {
  for (const char* name : {"images", "image", "videos", "audios"}) {
    const std::string field = ", \"" + std::string(name) + "\": ";
    EXPECT_THAT(fault_of(R"({"text": "a")" + field + R"(["x.png"]})"),
                StartsWith(std::string(name) + ": the record has some"));
    EXPECT_EQ(read({{write("none.jsonl", R"({"text": "a b")" + field + "null}\n" +
                                             R"({"text": "a b")" + field + "[]}\n")}})
                  .examples.size(),
              2u);
  }
}

TEST_F(Forms, AFileOfWhichAllIsMarkedSaysSo) {
  const std::string path = write("marked.jsonl", R"({"text": "a b", "train": false})");
  EXPECT_THAT(fault({{path}}), HasSubstr("all 1 examples are left out by their marks"));
}

TEST_F(Forms, FaultsOfAPairNameItsAnswer) {
  const auto fault_of_pair = [&](const std::string& chosen, const std::string& rejected) {
    return fault_of(R"({"conversations": [{"from": "human", "value": "a"}], "chosen": )" + chosen +
                    ", \"rejected\": " + rejected + "}");
  };
  const std::string fine = R"({"from": "gpt", "value": "b"})";
  EXPECT_EQ(fault_of_pair(R"({"value": "b"})", fine), "chosen.role: this field is required");
  EXPECT_EQ(fault_of_pair(fine, R"({"value": "b"})"), "rejected.role: this field is required");
  EXPECT_EQ(fault_of_pair(fine, R"({"from": "gpt"})"),
            "rejected.value: this field is required: wanted a string or a list of parts");
  EXPECT_EQ(fault_of_pair(R"({"from": "alien", "value": "b"})", fine),
            "chosen.from: got 'alien', wanted human, gpt, system or tool");
}

TEST_F(Forms, EveryPromptOfAPairComesBeforeEveryAnswer) {
  const std::string user = R"({"role": "user", "content": "a"})";
  const std::string chosen = R"({"role": "assistant", "content": "b"})";
  const std::string rejected = R"({"role": "assistant", "content": "c"})";
  const ExampleContext context{.tokenizer = tokenizer_, .end_tokens = end_, .render = kRender};
  // The members of a prompt, and its turns.
  const std::vector<std::array<std::string, 2>> prompts = {
      {R"("prompt": "a")", user},
      {"\"prompt\": [" + user + "]", user},
      {R"("conversations": [{"from": "human", "value": "a"}])", user},
      {R"("instruction": "a")", user},
      {R"("system": "s", "history": [["q", "r"]], "instruction": "a", "input": "i")",
       one_line(R"({"role": "system", "content": "s"},{"role": "user", "content": "q"},
{"role": "assistant", "content": "r"},{"role": "user", "content": "a\ni"})")}};
  for (const std::array<std::string, 2>& prompt : prompts) {
    for (const bool is_list : {false, true}) {
      const auto answer = [&](const std::string& said) {
        return is_list ? "[" + said + "]" : said;
      };
      const std::string pair = "{" + prompt[0] + ", \"chosen\": " + answer(chosen) +
                               ", \"rejected\": " + answer(rejected) + "}";
      SCOPED_TRACE(pair);
      std::vector<std::string> ignored;
      const ReadRecord record = read_record(pair, context, ignored);
      const auto tokens_of = [&](const std::string& said) {
        const std::string ours = "{\"messages\": [" + prompt[1] + "," + said + "]}";
        return make_example(ours, context, ignored).tokens;
      };
      EXPECT_EQ(record.example.tokens, tokens_of(chosen));
      ASSERT_TRUE(record.rejected);
      EXPECT_EQ(record.rejected->tokens, tokens_of(rejected));
    }
  }
}

TEST_F(Forms, WhatWasSeenIsSaid) {
  const Dataset plain = read({{write("plain.jsonl", "{\"text\": \"a\"}\n")}});
  EXPECT_EQ(describe_format(plain.files[0]), "");
  const std::string path = write("a.json.gz", gzip(R"([{"instruction": "a", "output": "b"}])"));
  EXPECT_EQ(describe_format(read({{path}}).files[0]),
            path + " looks like Alpaca: instruction, input, output (a JSON array, gzip)");
  const std::string csv = write("t.csv", "text\na\n");
  EXPECT_EQ(describe_format(read({{csv}}).files[0]), csv + " is CSV");
}

}  // namespace
}  // namespace strata::data
