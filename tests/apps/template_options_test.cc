// SPDX-License-Identifier: Apache-2.0
// --chat-template and --vars of the commands that render chats, and what strata data shows of them
// next to what is served.
#include <gmock/gmock.h>

#include <boost/json.hpp>

#include "apps/serve/served_texts.h"
#include "base/files.h"
#include "data/chat_example.h"
#include "server/openai/chat_body.h"
#include "tests/apps/program.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

using ::testing::ElementsAre;
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

TEST_F(TemplateOptions, AServerTakesATemplateForEachModel) {
  fs::copy(root_ + "/model", root_ + "/second", fs::copy_options::recursive);
  const server::BaseNames names({"a=" + root_ + "/model", "b=" + root_ + "/second"}, {}, {});
  EXPECT_THAT(find_template_files({"every.jinja", "b=of_b.jinja"}, names),
              ElementsAre("every.jinja", "of_b.jinja"));
  EXPECT_THAT(find_template_files({"b=of_b.jinja"}, names), ElementsAre("", "of_b.jinja"));
  EXPECT_THAT(find_template_files({"c=1.jinja"}, names), ElementsAre("c=1.jinja", "c=1.jinja"));
}

// What transformers says of these lines is in tests/text/conversation_test.cc.
TEST(ServedConversations, AreThoseThatAreTrainedInEveryFormAndFamily) {
  const std::string data = std::string(STRATA_SOURCE_DIR) + "/tests/data/";
  const std::string lines = read_file(data + "text/conversation_forms.jsonl", 1 << 24);
  int num_compared = 0;
  for (const auto& entry : fs::directory_iterator(data + "third_party/templates")) {
    SCOPED_TRACE(entry.path().string());
    const auto chat = text::ChatTemplate::parse(read_file(entry.path().string(), 1 << 20), "{}");
    server::ServedText served{
        .tokenizer = text::Tokenizer::load(std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3"),
        .chat = chat};
    for (size_t at = 0; at < lines.size();) {
      const size_t end = lines.find('\n', at);
      boost::json::object line = boost::json::parse(lines.substr(at, end - at)).as_object();
      at = end + 1;
      boost::json::object own;
      line.erase("expect");
      text::ConversationForm form = chat.conversation_form();
      form.writes_calls = true;  // those of templates that write none are compared too
      const auto trained = data::parse_conversation(boost::json::serialize(line), true, form, own);
      ASSERT_TRUE(trained);
      // A request has a list of tools, as OpenAI's clients write it.
      line.erase("tools");
      if (!trained->conversation.tools.empty())
        line["tools"] = boost::json::parse(trained->conversation.tools);
      const text::ChatRequest request = server::read_conversation(text::Fields(line, ""), served);
      EXPECT_EQ(request.messages, boost::json::serialize(trained->conversation.messages));
      EXPECT_EQ(request.tools, trained->conversation.tools);
      ++num_compared;
    }
  }
  EXPECT_EQ(num_compared, 15 * 60);
}

constexpr const char* kWithCall =
    R"({"messages": [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": )"
    R"("Hm.", "weight": 0}, {"role": "user", "content": "Lima."}, {"role": "assistant", )"
    R"("reasoning": "Why.", "tool_calls": [{"name": "weather", "arguments": "{\"city\": \"Lima\"}"}]}], )"
    R"("tools": "[{\"name\": \"weather\"}]"})";

TEST_F(TemplateOptions, DataShowsConversationsAsTemplatesGetThem) {
  const std::string chat =
      write("calls.jsonl", "{\"text\": \"1\"}\n" + std::string(kWithCall) + "\n");
  const Ran ran = run({"data", chat, "--model", "model", "--train-on", "all", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(run({"data", chat, "--model", "model", "--train-on", "all"}).out,
              HasSubstr("answers not trained on 1, examples left out 0"));
  const boost::json::value out = boost::json::parse(ran.out);
  EXPECT_EQ(out.at("marked_out_answers"), 1);
  EXPECT_TRUE(out.at("conversations").at(0).is_null());
  const boost::json::value& told = out.at("conversations").at(1);
  EXPECT_EQ(told.at("line"), 2);
  EXPECT_EQ(told.at("trained"), boost::json::parse("[3]"));
  EXPECT_EQ(told.at("messages").at(3).at("tool_calls").at(0).at("function").at("arguments"),
            boost::json::parse(R"({"city": "Lima"})"));
  EXPECT_EQ(told.at("tools").at(0).at("function").at("name"), "weather");
}

TEST_F(TemplateOptions, DataShowsALineAsAServerRendersIt) {
  const std::string chat = write("calls.jsonl", std::string(kWithCall) + "\n{\"text\": \"1\"}\n");
  const std::string templates =
      std::string(STRATA_SOURCE_DIR) + "/tests/data/third_party/templates/";
  const auto diff = [&](const std::string& name, const char* line) {
    return run({"data", chat, "--model", "model", "--chat-template", templates + name + ".jinja",
                "--diff", line});
  };
  const Ran equal = diff("qwen25", "1");
  EXPECT_EQ(equal.code, 0) << equal.err;
  EXPECT_THAT(equal.out, HasSubstr("answer messages[3]: equal: the server's prompt is what"));
  EXPECT_THAT(equal.out, HasSubstr("[[<tool_call>\n{\"name\": \"weather\", \"arguments\": "
                                   "{\"city\": \"Lima\"}}\n</tool_call><|im_end|>\n]]"));
  const Ran other = diff("qwen35_nothink", "1");
  EXPECT_THAT(other.out, HasSubstr("bytes are equal; then\nserved:\n"));
  EXPECT_THAT(diff("qwen25", "2").out, HasSubstr("no chat"));
  EXPECT_THAT(diff("qwen25", "3").err, HasSubstr("--diff: "));
}

}  // namespace
}  // namespace strata::apps
