// SPDX-License-Identifier: Apache-2.0
// A model whose RoPE has short and long factors: which of them each command's run has, what is too
// long for the short ones, and an adapter that meets the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/serve_run.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Short factors up to 64 positions, long ones up to 512.
class LongropeTest : public ServeStartTest {
 protected:
  void SetUp() override {
    ServeStartTest::SetUp();
    std::ofstream(root_ + "/config/config.json")
        << R"({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
      "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
      "original_max_position_embeddings": 64, "partial_rotary_factor": 0.5, "rope_scaling": {
      "type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 30.0]},
      "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "torch_dtype": "float32"})";
    fs::remove_all(model());
    ASSERT_EQ(run_init({.config = root_ + "/config", .out = model(), .seed = 1, .threads = 2}), 0);
  }
  [[nodiscard]] Ran run(Words args) const {
    args.insert(args.end(), {"--threads", "2"});
    return run_program(args);
  }
  [[nodiscard]] Ran generate(const Words& more, const std::string& prompt = "What is 7 plus 5?",
                             const std::string& of = "") const {
    Words args = {"generate",      of.empty() ? model() : of,
                  "--prompt",      prompt,
                  "--temperature", "0",
                  "--max-tokens",  "8",
                  "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  }
  [[nodiscard]] std::string trained(const std::string& name, const std::string& max_length) const {
    const std::string out = root_ + "/" + name;
    const Ran ran = run({"train", model(), "--data", root_ + "/data.jsonl", "--out", out, "--steps",
                         "2", "--max-length", max_length});
    EXPECT_EQ(ran.code, 0) << ran.err;
    return out;
  }
  [[nodiscard]] static std::string table_of(const std::string& adapter) {
    const std::string json = run_program({"inspect", adapter, "--json"}).out;
    const std::string key = R"("rope_factors":")";
    const size_t at = json.find(key);
    return at == std::string::npos ? json : json.substr(at + key.size(), 5);
  }
};

TEST_F(LongropeTest, ARunHasOneTableByTheContextThatItPlans) {
  const std::string short_text = generate({}).out;
  EXPECT_EQ(generate({"--context", "64"}).out, short_text);
  const std::string long_text = generate({"--context", "65"}).out;
  EXPECT_EQ(generate({"--context", "512"}).out, long_text);
  EXPECT_NE(long_text, short_text);
  const Ran beyond = generate({"--context", "513"});
  EXPECT_EQ(beyond.code, 2);
  EXPECT_THAT(beyond.err, HasSubstr("--context: got 513"));
  EXPECT_THAT(beyond.err, HasSubstr("has 512 positions"));
}

TEST_F(LongropeTest, WhatIsTooLongForTheShortFactorsIsRefused) {
  std::string prompt;
  for (int i = 0; i < 80; ++i) prompt += " word";
  const Ran refused = generate({}, prompt);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the model's context is 64; the model has 512, and this run "
                                     "is planned for fewer: --context (of train and eval "
                                     "--max-length) plans for more"));
  EXPECT_EQ(generate({"--context", "200"}, prompt).code, 0);
}

TEST_F(LongropeTest, AnAdapterRemembersItsTableAndWarnsOfTheOther) {
  const std::string of_short = trained("short", "64"), of_long = trained("long", "65");
  EXPECT_EQ(table_of(of_short), "short");
  EXPECT_EQ(table_of(of_long), "long\"");
  const std::string warning =
      "it was trained with the long factors of RoPE, and this run has the "
      "short ones";
  EXPECT_THAT(generate({}, "Hello", of_long).err, HasSubstr(warning));
  EXPECT_THAT(generate({"--context", "100"}, "Hello", of_long).err, Not(HasSubstr("factors")));
  EXPECT_THAT(generate({}, "Hello", of_short).err, Not(HasSubstr("factors")));
  EXPECT_THAT(generate({"--context", "100"}, "Hello", of_short).err,
              HasSubstr("--context (of train and eval --max-length) of at most 64 takes its own"));
  // With the table of each, eval has nothing to say of it.
  for (const char* length : {"64", "65"}) {
    const Ran ran = run({"eval", "--adapter", length[1] == '4' ? of_short : of_long, "--data",
                         root_ + "/data.jsonl", "--max-length", length});
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.err, Not(HasSubstr("factors")));
  }
}

TEST_F(LongropeTest, AServerSaysItsContext) {
  const auto context_of = [&](const Words& more) {
    Words args = {"--metrics-listen", "127.0.0.1:0"};
    args.insert(args.end(), more.begin(), more.end());
    const auto server = serve(named(args));
    const std::string body = ask(port_of(server->out()), "/api/v1/get_server_capabilities").body;
    EXPECT_EQ(end(*server), 0);
    return body;
  };
  EXPECT_THAT(context_of({}), HasSubstr(R"("max_context_length":64)"));
  EXPECT_THAT(context_of({"--context", "300"}), HasSubstr(R"("max_context_length":300)"));
}

}  // namespace
}  // namespace strata::apps
