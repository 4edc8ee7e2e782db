// SPDX-License-Identifier: Apache-2.0
// The chat template and the tokenizer that stand next to an adapter, as TRL, Unsloth and axolotl
// save them: used by each command, carried by merge and convert, served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/apps/resolve_paths_fixture.h"
#include "tests/apps/serve_run.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kOwn =
    "{% for m in messages %}{{ m.role }}> {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant> {% endif %}";
const std::string kLine = "its own chat template is used, not its base's";

class AdapterTextsTest : public ResolvePaths {
 protected:
  void SetUp() override {
    ResolvePaths::SetUp();
    make_adapter("model");
    write(
        "chats.jsonl",
        R"({"messages":[{"role":"user","content":"Two?"},{"role":"assistant","content":"Yes."}]})");
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ + "/" + name) << text;
  }
  [[nodiscard]] std::string rendered(const std::string& model) const {
    return run({"data", "chats.jsonl", "--model", model}).out;
  }
  // model/tokenizer.json, changed.
  void write_tokenizer(const std::string& old, const std::string& text) const {
    std::string json = content(root_ + "/model/tokenizer.json");
    const size_t at = json.find(old);
    ASSERT_NE(at, std::string::npos) << old;
    write("adapter/tokenizer.json", json.replace(at, old.size(), text));
  }
};

TEST_F(AdapterTextsTest, ItsTemplateIsUsedAndALineSaysSo) {
  const std::string of_base = rendered("model");
  EXPECT_EQ(rendered("adapter"), of_base);
  write("adapter/chat_template.jinja", kOwn);
  const Ran ran = run({"data", "chats.jsonl", "--model", "adapter"});
  EXPECT_THAT(ran.out, HasSubstr("user> Two?"));
  EXPECT_THAT(ran.err, HasSubstr("adapter: " + kLine));
  EXPECT_EQ(rendered("model"), of_base);
  EXPECT_THAT(run(with({"chat", "adapter"}, kAsk)).err, HasSubstr(kLine));
  EXPECT_THAT(run({"eval", "model", "--adapter", "adapter", "--data", "chats.jsonl"}).err,
              HasSubstr(kLine));
  // The same words as the base's are no other template.
  fs::copy(root_ + "/model/chat_template.jinja", root_ + "/adapter/chat_template.jinja",
           fs::copy_options::overwrite_existing);
  EXPECT_THAT(run({"data", "chats.jsonl", "--model", "adapter"}).err, Not(HasSubstr(kLine)));
}

TEST_F(AdapterTextsTest, ChatTemplateBaseTakesTheBases) {
  write("adapter/chat_template.jinja", kOwn);
  write("third.jinja", "{% for m in messages %}{{ m.content }}#{% endfor %}");
  const auto with_template = [&](const std::string& choice) {
    return run({"data", "chats.jsonl", "--model", "adapter", "--chat-template", choice});
  };
  const Ran of_base = with_template("base");
  EXPECT_EQ(of_base.out, rendered("model"));
  EXPECT_THAT(of_base.err, Not(HasSubstr(kLine)));
  EXPECT_THAT(with_template("third.jinja").out, HasSubstr("Two?#"));
  expect_works({"train", "model", "--data", "chats.jsonl", "--out", "tuned", "--steps", "1",
                "--chat-template", "third.jinja"});
  EXPECT_EQ(content(root_ + "/tuned/chat_template.jinja"), content(root_ + "/third.jinja"));
  EXPECT_THAT(rendered("tuned"), HasSubstr("Two?#"));
}

TEST_F(AdapterTextsTest, AFieldOfItsConfigIsATemplateToo) {
  write("adapter/tokenizer_config.json",
        R"({"eos_token":"<|im_end|>","chat_template":"{% for m in messages %}{{ m.content }}=)"
        R"({{ eos_token }}{% endfor %}"})");
  EXPECT_THAT(rendered("adapter"), HasSubstr("Two?="));
}

TEST_F(AdapterTextsTest, ABaseWithoutATemplateHasItsAdapters) {
  fs::remove(root_ + "/model/chat_template.jinja");
  EXPECT_EQ(run(with({"chat", "adapter"}, kAsk)).code, 2);
  write("adapter/chat_template.jinja", kOwn);
  const Ran ran = run(with({"chat", "adapter"}, kAsk));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, Not(HasSubstr(kLine))) << "there is no choice";
  EXPECT_THAT(run({"inspect", "adapter"}).out, HasSubstr("its own"));
}

TEST_F(AdapterTextsTest, InspectShowsThem) {
  EXPECT_THAT(run({"inspect", "adapter", "--json"}).out,
              HasSubstr(R"("chat_template":"none of its own","tokenizer":"none of its own")"));
  write("adapter/chat_template.jinja", kOwn);
  fs::copy(root_ + "/model/tokenizer.json", root_ + "/adapter/tokenizer.json");
  EXPECT_THAT(run({"inspect", "adapter", "--json"}).out,
              HasSubstr(R"("chat_template":"its own, in place of its base's",)"
                        R"("tokenizer":"as its base's")"));
}

TEST_F(AdapterTextsTest, MergedModelsHaveThem) {
  write("adapter/chat_template.jinja", kOwn);
  expect_works({"merge", "adapter", "--out", "merged"});
  EXPECT_EQ(content(root_ + "/merged/chat_template.jinja"), kOwn);
  expect_works({"convert", "adapter", "--type", "bf16", "--out", "converted"});
  EXPECT_EQ(content(root_ + "/converted/chat_template.jinja"), kOwn);
  EXPECT_EQ(rendered("merged"), rendered("adapter"));
  expect_works({"convert", "adapter", "--to", "gguf", "--out", "whole.gguf"});
  EXPECT_EQ(rendered("whole.gguf"), rendered("adapter"));
  fs::copy(root_ + "/adapter", root_ + "/other", fs::copy_options::recursive);
  const Ran two =
      run({"merge", "model", "--adapter", "adapter", "--adapter", "other", "--out", "both"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_THAT(two.err, HasSubstr("of several adapters the base's are kept"));
  EXPECT_EQ(content(root_ + "/both/chat_template.jinja"),
            content(root_ + "/model/chat_template.jinja"));
}

TEST_F(AdapterTextsTest, TrainingOnFromItKeepsThem) {
  write("adapter/chat_template.jinja", kOwn);
  expect_works({"train", "model", "--adapter", "adapter", "--data", "chats.jsonl", "--out", "more",
                "--steps", "1"});
  EXPECT_EQ(content(root_ + "/more/chat_template.jinja"), kOwn);
}

TEST_F(AdapterTextsTest, ATokenizerWithOtherIdsIsRefusedWithTheFirst) {
  const auto refused = [&](const std::string& what) {
    for (const Words& command :
         {with({"chat", "adapter"}, kAsk), Words{"data", "chats.jsonl", "--model", "adapter"},
          Words{"merge", "adapter", "--out", "merged"}}) {
      expect_refused(command, "adapter/tokenizer.json: " + what);
    }
    const Ran inspected = run({"inspect", "adapter"});
    EXPECT_EQ(inspected.code, 2);
    EXPECT_THAT(inspected.out, HasSubstr("FAULT adapter/tokenizer.json: " + what));
  };
  write_tokenizer("<|im_start|>", "<|turn|>");
  refused("id 4071 is '<|turn|>', and '<|im_start|>' in the base's");
  write_tokenizer(R"([^\\r\\n\\p{L}\\p{N}]?\\p{L}+)", R"(\\p{L}+)");
  refused("'Hello, world!' becomes [");
  const std::string token =
      R"("added_tokens": [{"id": 4096, "content": "<|x|>", "single_word": false, "lstrip": false,)"
      R"("rstrip": false, "normalized": false, "special": true},)";
  write_tokenizer(R"("added_tokens": [)", token);
  refused("the added token '<|x|>' has the id 4096, and the base has rows for 4096");
}

TEST_F(AdapterTextsTest, AnAddedTokenThatTheBaseHasARowForIsUsed) {
  std::string config = content(root_ + "/config/config.json");
  config.replace(config.find("\"vocab_size\": 4096"), 18, "\"vocab_size\": 4100");
  write("config/config.json", config);
  fs::remove_all(root_ + "/model");
  fs::remove_all(root_ + "/adapter");
  ASSERT_EQ(run_init({.config = root_ + "/config", .out = model(), .seed = 1, .threads = 2}), 0);
  make_adapter("model");
  write_tokenizer(R"("added_tokens": [)",
                  R"("added_tokens": [{"id": 4099, "content": "<|x|>", "special": true},)");
  write("texts.jsonl", R"({"text":"<|x|><|x|><|x|>"})");
  const auto tokens = [&](const std::string& model) {
    const std::string json = run({"data", "texts.jsonl", "--model", model, "--json"}).out;
    return json.substr(json.find(R"("tokens":)"), 12);
  };
  EXPECT_NE(tokens("adapter"), tokens("model"));
  EXPECT_THAT(run({"inspect", "adapter"}).out, HasSubstr("with 1 more added tokens"));
}

class ServedAdapterTexts : public ServeStartTest {
 protected:
  std::string make_adapter(const std::string& name, const std::string& chat_template) {
    TrainOptions o = options(name);
    o.steps = 1;
    EXPECT_EQ(run_train(o), 0);
    if (!chat_template.empty()) std::ofstream(o.out + "/chat_template.jinja") << chat_template;
    return o.out;
  }
};

TEST_F(ServedAdapterTexts, EachIsAskedByItsOwnTemplate) {
  const std::string one = make_adapter("one", "{{ messages[0].content }}");
  const std::string two =
      make_adapter("two", "{% for i in range(50) %}{{ messages[0].content }}{% endfor %}");
  const std::string plain = make_adapter("plain", "");
  const auto server =
      serve(named({"--adapter", "one=" + one, "--adapter", "two=" + two, "--adapter",
                   "plain=" + plain, "--metrics-listen", "127.0.0.1:0"}));
  const int port = port_of(server->out());
  const auto prompt_tokens = [&](const std::string& name) {
    const Reply reply =
        ask(port, "/v1/chat/completions",
            R"({"model":")" + name +
                R"(","max_tokens":1,"messages":[{"role":"user","content":"seven"}]})");
    return object_of(reply).at("usage").at("prompt_tokens").as_int64();
  };
  const int64_t of_base = prompt_tokens("tiny");
  EXPECT_EQ(prompt_tokens("plain"), of_base);
  EXPECT_LT(prompt_tokens("one"), of_base);
  EXPECT_EQ(prompt_tokens("two"), 50 * prompt_tokens("one"));
  EXPECT_THAT(server->err(), HasSubstr("--adapter one: " + one + ": " + kLine));
  EXPECT_EQ(end(*server), 0);
}

}  // namespace
}  // namespace strata::apps
