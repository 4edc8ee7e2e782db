// SPDX-License-Identifier: Apache-2.0
// Files of preference pairs as --loss dpo reads them: both answers, what they share is not trained,
// and pairs that teach nothing are left out and named.
#include <gmock/gmock.h>

#include "base/files.h"
#include "tests/data/data_fixture.h"

namespace strata::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr ReadOptions kPairs = {.max_length = 500, .pairs = true};

class Pairs : public DataTest {
 protected:
  // The text of what is trained of an answer.
  [[nodiscard]] std::string trained_text(const Example& example) const {
    std::vector<int32_t> ids;
    for (size_t t = 0; t < example.targets.size(); ++t) {
      if (example.weights[t] != 0.0f) ids.push_back(example.targets[t]);
    }
    return tokenizer_.decode(ids);
  }
  std::pair<std::string, std::string> trained_of(const std::string& record,
                                                 TrainOn train_on = TrainOn::kLast) {
    const Dataset read_pairs = read({{write("pair.jsonl", record)}}, kPairs, train_on);
    EXPECT_EQ(read_pairs.examples.size(), 1u);
    const ExamplePair pair = read_pairs.examples.pair(0);
    return {trained_text(pair.chosen), trained_text(pair.rejected)};
  }
};

// tools/golden/make_dpo.py: TRL's tokens, and where it begins to train.
TEST_F(Pairs, TextsAreReadAsTrlReadsThem) {
  const std::string golden = std::string(STRATA_SOURCE_DIR) + "/tests/golden/dpo/expected.json";
  const boost::json::value expected = boost::json::parse(read_file(golden, 1 << 20));
  std::string lines;
  for (const boost::json::value& text : expected.at("texts").as_array())
    lines += boost::json::serialize(text) + "\n";
  const Dataset dataset = read({{write("texts.jsonl", lines)}}, kPairs);
  const boost::json::array& pairs = expected.at("pairs").as_array();
  ASSERT_EQ(dataset.examples.size(), pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    const ExamplePair pair = dataset.examples.pair(i);
    for (const auto& [side, name] :
         {std::pair(&pair.chosen, "chosen_ids"), std::pair(&pair.rejected, "rejected_ids")}) {
      SCOPED_TRACE(name + std::to_string(i));
      std::vector<int32_t> prompt, answer;
      prompt.push_back(side->tokens.front());
      for (size_t t = 0; t < side->targets.size(); ++t)
        (side->weights[t] != 0.0f ? answer : prompt).push_back(side->targets[t]);
      EXPECT_EQ(boost::json::value_from(prompt), pairs[i].at("prompt_ids"));
      EXPECT_EQ(boost::json::value_from(answer), pairs[i].at(name));
    }
  }
}

// A space before the first difference is part of the answers: it may be a token of its own.
TEST_F(Pairs, ASpaceBeforeTheAnswersIsTrained) {
  const auto [chosen, rejected] =
      trained_of(R"({"chosen": "2 plus 2 is 4", "rejected": "2 plus 2 is 5"})");
  EXPECT_EQ(chosen, " 4<|im_end|>");
  EXPECT_EQ(rejected, " 5<|im_end|>");
}

TEST_F(Pairs, TurnsThatBothShareAreNotTrained) {
  const std::string shared =
      R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})";
  const auto answer = [](const char* text) {
    return std::string(R"({"role": "assistant", "content": ")") + text + "\"}";
  };
  const std::string whole = "{\"chosen\": [" + shared + "," + answer("d") + "], \"rejected\": [" +
                            shared + "," + answer("e") + "]}";
  for (const TrainOn train_on : {TrainOn::kLast, TrainOn::kAll}) {
    const auto [chosen, rejected] = trained_of(whole, train_on);
    EXPECT_EQ(chosen, "d<|im_end|>\n");
    EXPECT_EQ(rejected, "e<|im_end|>\n");
  }
  // Of an answer of several turns the last one, or all.
  const std::string turns = "{\"prompt\": [" + shared + "], \"chosen\": [" + answer("d") +
                            R"(, {"role": "user", "content": "f"}, )" + answer("g") +
                            "], \"rejected\": [" + answer("e") + "]}";
  EXPECT_EQ(trained_of(turns).first, "g<|im_end|>\n");
  EXPECT_EQ(trained_of(turns, TrainOn::kAll).first, "d<|im_end|>\ng<|im_end|>\n");
}

TEST_F(Pairs, WhatTeachesNothingIsLeftOutByName) {
  const std::string path = write("pairs.jsonl", R"({"prompt": "a", "chosen": " b", "rejected": " c"}
{"prompt": "a", "chosen": " b", "rejected": " b"}
{"prompt": "a", "chosen": " c", "rejected": " b"}
{"prompt": "a", "chosen": " b", "rejected": " c", "score_chosen": 1, "score_rejected": 0}
{"prompt": "d", "chosen": " b", "rejected": " c", "score_chosen": 4, "score_rejected": 4.0}
{"prompt": "d", "chosen": " b", "rejected": " c", "chosen-rating": 4, "rejected-rating": 3}
)");
  const Dataset dataset = read({{path}}, kPairs);
  EXPECT_EQ(dataset.examples.size(), 3u);
  EXPECT_EQ(dataset.num_lines, 6);
  EXPECT_TRUE(dataset.ignored_fields.empty());
  EXPECT_EQ(left_out_pairs_text(dataset.files[0]),
            path +
                ": 3 pairs are left out: 1 with equal answers (line 2), 1 that came before (line "
                "4), 1 with equal scores (line 5)");
  const std::string none =
      write("none.jsonl", R"({"prompt": "a", "chosen": "b", "rejected": "b"})");
  EXPECT_THAT(fault({{none}}, kPairs),
              HasSubstr("no pair is left to train on:\n" + none + ": 1 pair is left out: 1 with"));
}

TEST_F(Pairs, LongAnswersTakeTheirPairWithThem) {
  const std::string path =
      write("long.jsonl", R"({"prompt": "a", "chosen": " b", "rejected": " c d e f g h i j k l"}
{"prompt": "a", "chosen": " b", "rejected": " c"}
)");
  ReadOptions options = {.max_length = 6, .pairs = true};
  const Dataset dropped = read({{path}}, options);
  EXPECT_EQ(dropped.examples.size(), 1u);
  EXPECT_EQ(dropped.num_too_long, 1);
  EXPECT_THAT(dropped.files[0].too_long.first, ElementsAre(1));
  options.overlong = Overlong::kCut;
  const Dataset cut = read({{path}}, options);
  ASSERT_EQ(cut.examples.size(), 2u);
  EXPECT_EQ(cut.examples.pair(0).rejected.tokens.size(), 5u);
  EXPECT_THAT(cut.examples.lengths_of_answers(), ElementsAre(2, 5, 2, 2));
  EXPECT_THAT(cut.examples.lengths(), ElementsAre(7, 4));
}

TEST_F(Pairs, WhatIsNoPairIsAFault) {
  const std::string path = write("text.jsonl", R"({"text": "a"})");
  EXPECT_THAT(fault({{path}}, kPairs),
              HasSubstr(":1: no preference pair: --loss dpo and orpo want chosen"));
}

// Beyond what stays in memory pairs are read from a file.
TEST_F(Pairs, LieInAFileToo) {
  std::string lines;
  for (int i = 0; i < 50; ++i) {
    lines += R"({"prompt": "a", "chosen": " )" + std::to_string(i) + R"(", "rejected": " x )" +
             std::to_string(i) + "\"}\n";
  }
  const std::string path = write("many.jsonl", lines);
  const Dataset held = read({{path}}, kPairs);
  const Dataset filed = read({{path}}, {.max_length = 500, .in_memory = 100, .pairs = true});
  ASSERT_EQ(filed.examples.size(), 50u);
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(filed.examples.pair(i).chosen.targets, held.examples.pair(i).chosen.targets);
    EXPECT_EQ(filed.examples.pair(i).rejected.targets, held.examples.pair(i).rejected.targets);
    EXPECT_EQ(filed.examples.pair(i).rejected.weights, held.examples.pair(i).rejected.weights);
  }
}

}  // namespace
}  // namespace strata::data
