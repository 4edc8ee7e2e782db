// SPDX-License-Identifier: Apache-2.0
// --chat-template and --vars of the commands that render chats.
#include <gmock/gmock.h>

#include "tests/apps/program.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

class TemplateOptions : public TrainTest {
 protected:
  [[nodiscard]] Ran run(const Words& words) const {
    Surroundings around;
    around.folder = root_;
    return run_program(words, "", around);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ + "/" + name) << text;
    return root_ + "/" + name;
  }
};

constexpr const char* kPlain =
    "{% for m in messages %}[{{ tone | default('calm') }}] {{ m.role }}: {{ m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}[{{ tone | default('calm') }}] assistant: "
    "{% endif %}";

TEST_F(TemplateOptions, AnotherTemplateAndItsVariables) {
  write("plain.jinja", kPlain);
  const std::string chat = write(
      "chat.jsonl", std::string(R"({"messages": [{"role": "user", "content": "What is 1?"}, )") +
                        R"({"role": "assistant", "content": "2 3"}]})" + "\n");
  const Words look = {"data", chat, "--model", "model", "--chat-template", "plain.jinja"};
  EXPECT_THAT(run(look).out, HasSubstr("[calm] user: What is 1?\n[calm] assistant: [[2 3\n]]"));
  const auto with_vars = [&](Words words, const char* vars) {
    words.insert(words.end(), {"--vars", vars});
    return run(words);
  };
  EXPECT_THAT(with_vars(look, R"({"tone": "brisk"})").out,
              HasSubstr("[brisk] user: What is 1?\n[brisk] assistant: [[2 3\n]]"));
  EXPECT_THAT(with_vars(look, "{tone}").err, HasSubstr("--vars"));
  EXPECT_THAT(with_vars(look, R"(["tone"])").err, HasSubstr("--vars"));
  EXPECT_THAT(run({"data", chat, "--model", "model", "--chat-template", "none.jinja"}).err,
              HasSubstr("--chat-template: none.jinja: there is no such file"));
  const Words eval = {"eval", "--model", "model", "--data", chat, "--json"};
  Words other = eval;
  other.insert(other.end(), {"--chat-template", "plain.jinja"});
  EXPECT_NE(run(eval).out, run(other).out);
  EXPECT_NE(run(other).out, with_vars(other, R"({"tone": "brisk"})").out);
}

TEST_F(TemplateOptions, ATemplateMakesAPromptAUsersTurn) {
  write("plain.jinja", kPlain);
  const auto generate = [&](const char* prompt, const Words& more) {
    Words words = {"generate", "--model",       "model", "--prompt",  prompt, "--max-tokens",
                   "5",        "--temperature", "0",     "--threads", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const Ran turn = generate("What is 1?", {"--chat-template", "plain.jinja"});
  EXPECT_EQ(turn.code, 0) << turn.err;
  EXPECT_EQ(turn.out, generate("[calm] user: What is 1?\n[calm] assistant: ", {}).out);
  EXPECT_EQ(
      generate("What is 1?", {"--chat-template", "plain.jinja", "--vars", R"({"tone":"up"})"}).out,
      generate("[up] user: What is 1?\n[up] assistant: ", {}).out);
  const Words chat = {
      "chat",          "--model", "model",     "--prompt", "What is 1?",      "--max-tokens", "5",
      "--temperature", "0",       "--threads", "2",        "--chat-template", "plain.jinja"};
  EXPECT_EQ(run(chat).out, turn.out);
}

TEST_F(TemplateOptions, TemplateAndVariablesAreResultsAndAreKnownToResume) {
  TrainOptions o = options("templates");
  o.steps = 2;
  o.data = {write("chat.jsonl", R"({"messages": [{"role": "user", "content": "What is 1?"}, )"
                                R"({"role": "assistant", "content": "2 3"}]})")};
  o.chat = {.file = write("plain.jinja", kPlain), .vars = R"({"tone": "brisk"})"};
  o.samples = {"What is 1?"};
  ASSERT_EQ(run_train(o), 0);
  o.resume = true;
  TrainOptions other = o;
  other.chat.vars = "";
  EXPECT_THAT(fault(other), HasSubstr("vars: was"));
  other = o;
  other.chat.file = write("other.jinja", std::string(kPlain) + " ");
  EXPECT_THAT(fault(other), HasSubstr("chat-template: was"));
  EXPECT_EQ(run_train(o), 0);
}

}  // namespace
}  // namespace strata::apps
