// SPDX-License-Identifier: Apache-2.0
// The model card: what stands in it, that equal runs write equal ones wherever they ran, and that a
// resumed run's is that of one which was never stopped.
#include "trainer/model_card.h"

#include <gmock/gmock.h>

#include "apps/export/convert.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ModelCard : public TrainTest {
 protected:
  [[nodiscard]] std::string card(const std::string& out) const {
    return content(root_ + "/" + out + "/README.md");
  }
};

TEST_F(ModelCard, NamesBaseDataSettingsLossesAndUse) {
  TrainOptions o = options("out");
  o.steps = 3;
  ASSERT_EQ(run_train(o), 0);
  const std::string text = card("out");
  EXPECT_THAT(text, StartsWith("---\nbase_model: model\nlibrary_name: peft\n"
                               "pipeline_tag: text-generation\ntags:\n- lora\n- strata\n---\n"));
  // sha256sum of the fixture's file.
  EXPECT_THAT(text,
              HasSubstr("`data.jsonl`, 38 examples, SHA-256 "
                        "`c0e78af44b2d01531dc8086a223afce0b730b21a85e2a2bcadae2b3e762bb1f6`"));
  EXPECT_THAT(text, HasSubstr("| base weights | matrices in "));
  EXPECT_THAT(text, AllOf(HasSubstr("| steps | 3 of 3 |"), HasSubstr("| training loss | "),
                          HasSubstr("| evaluation loss before | 8."), HasSubstr("| rank | ")));
  EXPECT_THAT(text, AllOf(HasSubstr("strata chat --model $BASE --adapter ."),
                          HasSubstr("PeftModel.from_pretrained(model, \".\")"),
                          HasSubstr("model.load_adapter(\".\")")));
  EXPECT_THAT(text, Not(HasSubstr(root_)));
  EXPECT_THAT(text, Not(HasSubstr("PEFT 0.21 warns")));  // of experts alone
}

TEST_F(ModelCard, EqualRunsInOtherFoldersWriteEqualCards) {
  TrainOptions first = options("first");
  first.steps = 2;
  ASSERT_EQ(run_train(first), 0);
  fs::create_directories(root_ + "/elsewhere");
  fs::copy(model(), root_ + "/elsewhere/model", fs::copy_options::recursive);
  fs::copy(first.data[0], root_ + "/elsewhere/data.jsonl");
  TrainOptions second = options("second");
  second.steps = 2;
  second.model = root_ + "/elsewhere/model/";
  second.data = {root_ + "/elsewhere/data.jsonl"};
  ASSERT_EQ(run_train(second), 0);
  EXPECT_EQ(card("first"), card("second"));
  second.out = root_ + "/third";
  second.lr = 0.5;
  ASSERT_EQ(run_train(second), 0);
  EXPECT_NE(card("first"), card("third"));
}

TEST_F(ModelCard, OfAFullModelUsesTheFolderAlone) {
  TrainOptions o = options("out");
  o.method = "full";
  o.steps = 2;
  ASSERT_EQ(run_train(o), 0);
  const std::string text = card("out");
  EXPECT_THAT(text, AllOf(HasSubstr("library_name: transformers\n"), HasSubstr("base = \".\"\n"),
                          HasSubstr("strata generate --model . "), Not(HasSubstr("- lora"))));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("PeftModel")), Not(HasSubstr("| rank |")),
                          Not(HasSubstr("| muon-"))));
}

TEST_F(ModelCard, ChatsWithABaseInGgufThatHasATemplate) {
  ConvertOptions to_gguf;
  to_gguf.model = model();
  to_gguf.to = "gguf";
  to_gguf.out = root_ + "/tiny.gguf";
  ASSERT_EQ(run_convert(to_gguf), 0);
  TrainOptions o = options("out");
  o.model = to_gguf.out;
  o.steps = 1;
  ASSERT_EQ(run_train(o), 0);
  EXPECT_THAT(card("out"), AllOf(HasSubstr("strata chat --model $BASE --adapter ."),
                                 HasSubstr("tokenizer.apply_chat_template(")));
}

TEST_F(ModelCard, AFolderWithADotInItsNameIsCalledSoInGguf) {
  fs::copy(model(), root_ + "/tiny-1.5B");
  for (const char* end : {"", "/"}) {
    ConvertOptions o;
    o.model = root_ + "/tiny-1.5B" + end;
    o.to = "gguf";
    o.out = root_ + "/out.gguf";
    ASSERT_EQ(run_convert(o), 0);
    EXPECT_THAT(content(o.out), HasSubstr("tiny-1.5B"));
    fs::remove(o.out);
  }
}

TEST_F(ModelCard, CommandsQuoteABaseThatAShellWouldTakeApart) {
  const std::string odd =
      model_card_text({.base = "it's \"my\" base", .has_chat_template = true}, 1, 2, {.loss = 1});
  EXPECT_THAT(odd, AllOf(HasSubstr("\nBASE='path/to/it'\\''s \"my\" base'\n"),
                         HasSubstr("strata chat --model \"$BASE\" --adapter .\n"),
                         HasSubstr("base = \"path/to/it's \\\"my\\\" base\"\n")));
}

TEST_F(ModelCard, BaseIsTheFoldersNameOrThatOnTheHub) {
  EXPECT_EQ(base_model_name("/data/models/tiny-qwen3/"), "tiny-qwen3");
  EXPECT_EQ(base_model_name("tiny-qwen3"), "tiny-qwen3");
  EXPECT_EQ(base_model_name("/c/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de2"),
            "Qwen/Qwen3-0.6B");
  EXPECT_THAT(model_card_text({.base = "0: odd|name"}, 1, 2, {.loss = 1}),
              StartsWith("---\nbase_model: \"0: odd|name\"\n"));
  for (const char* word : {"no", "Null", "true"}) {
    EXPECT_THAT(model_card_text({.base = word}, 1, 2, {.loss = 1}),
                StartsWith("---\nbase_model: \"" + std::string(word) + "\"\n"));
  }
}

}  // namespace
}  // namespace strata::apps
