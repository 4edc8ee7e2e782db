// SPDX-License-Identifier: Apache-2.0
// The subcommands of plan: each has the options that it reads, and old forms say the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "tests/apps/plan_run.h"
#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kMachine[] =
    "{\"bf16_flops\": 2e11, \"f32_flops\": 1e11, \"read_bytes_per_s\": 1e10, "
    "\"file_bytes_per_s\": 1e9}\n";

// Its two forms print the same.
void expect_same(Words word, const Words& options) {
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Ran one = run_program(with({"plan", word[0]}, options));
  word.erase(word.begin());
  const Ran other = run_program(with(with({"plan"}, word), options));
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_NE(one.out, "");
  EXPECT_EQ(one.out, other.out);
}

TEST(PlanCommands, AreAlsoUnderstoodInTheirOldForms) {
  const TempDir folder;
  const std::string model = path_of("qwen3");
  write_file_atomic(folder.file("machine.json"), kMachine);
  const std::string machine = folder.file("machine.json");
  expect_same({"train", "--for", "train"},
              {model, "--tokens", "3x40", "--machine", machine, "--json"});
  const Words of_stages = {model, "--tokens",  "3x40",  "--stages",
                           "2",   "--machine", machine, "--json"};
  expect_same({"train"}, of_stages);
  expect_same({"stages"}, of_stages);
  expect_same({"serve", "--for", "serve"}, {model, "--memory", "1GiB", "--json"});
  expect_same({"serve", "--for=serve"}, {model, "--memory", "1GiB", "--json"});
  expect_same({"schedule"},
              {"--schedule", "1f1b", "--pipeline", "4", "--microbatches", "8", "--json"});
}

TEST(PlanCommands, HaveTheirOwnOptionsAlone) {
  const std::vector<std::pair<std::string, std::string>> others = {
      {"train", "--max-rank"}, {"serve", "--tokens"}, {"schedule", "--rank"}};
  for (const auto& [word, option] : others) {
    const Ran help = run_program({"plan", word, "--help-all"});
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr("Usage: strata plan " + word));
    EXPECT_THAT(help.out, Not(HasSubstr("  " + option + " ")));
    EXPECT_THAT(help.out, Not(HasSubstr("--for ")));
    const Ran refused = run_program({"plan", word, option, "1"});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("plan " + word + ": there is no option " + option));
    EXPECT_EQ(run_program({"help", "plan", word}).out, run_program({"plan", word, "--help"}).out);
  }
}

TEST(PlanCommands, RefuseForStagesWhatIsOfAWholeModel) {
  const Ran ran = run_program({"plan", "train", path_of("qwen3"), "--tokens", "3x40", "--stages",
                               "2", "--svg", "plan.svg"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--svg: has no effect with --stages"));
}

// A model alone is asked about with a step of the usual size, and answered in a word.
TEST(PlanCommands, AModelAloneIsAnsweredWhetherItCanBeTunedHere) {
  const TempDir folder;
  const std::string machine = folder.file("machine.json");
  write_file_atomic(machine, kMachine);
  const std::string model = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";
  const Ran small = run_program({"plan", model, "--machine", machine});
  EXPECT_EQ(small.code, 0) << small.err;
  EXPECT_THAT(small.out, StartsWith("yes: LoRA of rank 32 on 8 sequences of 512 tokens a step"));
  EXPECT_THAT(small.out, HasSubstr("; a step takes "));
  const Ran given = run_program({"plan", model, "--machine", machine, "--tokens", "8x512"});
  EXPECT_THAT(given.out,
              StartsWith("yes: LoRA of rank 32 on 8 sequences of 512 tokens a step takes "));
  // The hub's spelling, and ours.
  EXPECT_EQ(run_program({"plan", "Qwen3-0.6B", "--machine", machine}).out,
            run_program({"plan", "qwen3-0.6b", "--machine", machine}).out);
  const Ran json = run_program({"plan", model, "--machine", machine, "--json"});
  EXPECT_THAT(json.out, StartsWith("{"));
  write_file_atomic(folder.file("config.json"), R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
    "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
    "num_attention_heads": 128, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16"})");
  const Ran large = run_program({"plan", folder.file("config.json"), "--machine", machine});
  EXPECT_EQ(large.code, 0) << large.err;
  EXPECT_THAT(large.out, AnyOf(StartsWith("no: "), StartsWith("yes, with --memory ")));
  // 800 GB of weights in files.
  EXPECT_THAT(large.out, AnyOf(StartsWith("no: "), HasSubstr("\nit needs ")));
}

TEST(PlanCommands, SayWhatIsMissing) {
  EXPECT_THAT(run_program({"plan"}).err, HasSubstr("--model"));
  const Ran ran = run_program({"plan", "schedule"});
  EXPECT_EQ(ran.code, 2);
  for (const char* option : {"--schedule", "--pipeline", "--microbatches"})
    EXPECT_THAT(ran.err, HasSubstr(option));
  EXPECT_THAT(run_program({"plan", "x", "--for", "both"}).err,
              HasSubstr("--for: got 'both', want train or serve"));
}

}  // namespace
}  // namespace strata::apps
