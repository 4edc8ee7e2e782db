// SPDX-License-Identifier: Apache-2.0
// strata convert --to gguf, the program itself: K-quants, how to sample, numbers in 32 bits, and
// the Modelfile for ollama.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "checkpoint/gguf/gguf_file.h"
#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBundled = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";

class ConvertTest : public ::testing::Test {
 protected:
  // The bundled model with other small files: name and content; an empty one is left out.
  std::string model_with(const std::map<std::string, std::string>& files) {
    const std::filesystem::path dir = dir_.file("model");
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
    for (const auto& file : std::filesystem::directory_iterator(kBundled)) {
      const std::string name = file.path().filename();
      if (!files.contains(name)) std::filesystem::create_symlink(file.path(), dir / name);
    }
    for (const auto& [name, content] : files) {
      if (!content.empty()) std::ofstream(dir / name) << content;
    }
    return dir.string();
  }
  Ran convert(const std::string& model, const Words& more = {}) {
    std::filesystem::remove(dir_.file("a.gguf"));
    Words args = {"convert", "--model", model, "--to", "gguf", "--out", out(), "--threads", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args);
  }
  [[nodiscard]] std::string out() const { return dir_.file("a.gguf"); }
  std::string modelfile_of(const std::string& model) {
    const std::string file = dir_.file("Modelfile");
    std::filesystem::remove(file);
    const Ran ran = convert(model, {"--modelfile", file});
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("ollama create NAME -f " + file));
    return read_bytes(file);
  }

  const TempDir dir_;
};

// The model's rows are 192 wide, which blocks of 256 do not divide; those of its down projections
// are.
TEST_F(ConvertTest, KQuantsAreWrittenAndAnswer) {
  for (const auto& [type, number] : {std::pair{"q4_k_m", 15}, {"q5_k_m", 17}, {"q6_k", 18}}) {
    const Ran ran = convert(kBundled, {"--type", type});
    ASSERT_EQ(ran.code, 0) << ran.err;
    const GgufFile file(out());
    EXPECT_EQ(file.keys().integer("general.file_type"), number);
    const Ran answer =
        run_program({"chat", "--model", out(), "--prompt", "What is 7 plus 5?", "--threads", "2"});
    EXPECT_EQ(answer.code, 0) << answer.err;
    EXPECT_EQ(answer.out, "7 plus 5 is 12.\n") << type;
    EXPECT_THAT(answer.err, HasSubstr("do_sample false (greedy)"));
  }
}

// As transformers saved SmolLM2's: more digits than 32 bits have.
TEST_F(ConvertTest, NumbersAreComparedAsTheFileHasThem) {
  boost::json::object config =
      boost::json::parse(read_bytes(kBundled + "/config.json")).as_object();
  config["rms_norm_eps"] = 9.999999747378752e-06;
  const Ran ran = convert(model_with({{"config.json", boost::json::serialize(config)}}));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(GgufFile(out()).keys().number("qwen3.attention.layer_norm_rms_epsilon"), 1e-5);
}

TEST_F(ConvertTest, AModelfileSaysWhatOllamaWants) {
  EXPECT_EQ(modelfile_of(kBundled),
            "FROM ./a.gguf\n"
            "TEMPLATE \"\"\"{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
            "{{ range .Messages }}{{ if eq .Role \"user\" }}<|im_start|>user\n{{ .Content }}"
            "<|im_end|>\n{{ else if eq .Role \"assistant\" }}<|im_start|>assistant\n"
            "{{ .Content }}<|im_end|>\n{{ end }}{{ end }}<|im_start|>assistant\n\"\"\"\n"
            "PARAMETER temperature 0\n"
            "PARAMETER stop \"<|endoftext|>\"\n"
            "PARAMETER stop \"<|im_end|>\"\n");
  const std::string sampled = modelfile_of(model_with(
      {{"generation_config.json",
        R"({"eos_token_id": 4072, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1})"}}));
  EXPECT_THAT(sampled, HasSubstr("PARAMETER temperature 0.6\nPARAMETER top_k 20\n"
                                 "PARAMETER repeat_penalty 1.1\nPARAMETER repeat_last_n -1\n"));
}

TEST_F(ConvertTest, ATemplateHasASystemTurnOfItsOwnAndBraces) {
  const std::string text = modelfile_of(model_with(
      {{"chat_template.jinja",
        "{% if messages[0].role != 'system' %}<s>Be {{ '{{' }}kind}}.\n{% endif %}"
        "{% for m in messages %}{% if m.role == 'system' %}<s>{{ m.content }}\n{% elif m.role == "
        "'user' %}[{{ m.content }}]{% else %}{{ m.content }}.{% endif %}{% endfor %}"}}));
  EXPECT_THAT(text, HasSubstr("{{ if .System }}<s>{{ .System }}\n{{ else }}<s>Be {{ \"{{\" }}kind}}"
                              ".\n{{ end }}{{ range .Messages }}{{ if eq .Role \"user\" }}["
                              "{{ .Content }}]{{ else if eq .Role \"assistant\" }}{{ .Content }}.{{"
                              " end }}{{ end }}\"\"\""));
}

// One that numbers its turns, one that refuses a system turn, and a model without one.
TEST_F(ConvertTest, WhatOllamasFormCannotSayIsLeftToOllama) {
  for (const char* jinja :
       {"{% for m in messages %}{{ loop.index }} {{ m.content }}\n{% endfor %}",
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "<{{ m.content }}>{% endfor %}",
        ""}) {
    const std::string text = modelfile_of(model_with({{"chat_template.jinja", jinja}}));
    EXPECT_THAT(text, Not(HasSubstr("TEMPLATE \"\"\"")));
    EXPECT_THAT(text, HasSubstr("# No TEMPLATE: "));
    EXPECT_THAT(text, HasSubstr("PARAMETER stop"));
  }
}

TEST_F(ConvertTest, AModelfileIsOfAGgufFileAndOverwritesNothing) {
  const std::string file = dir_.file("Modelfile");
  const Ran other =
      run_program({"convert", "--model", kBundled, "--out", dir_.file("b"), "--modelfile", file});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("--modelfile: of a GGUF file alone: add --to gguf"));
  std::ofstream(file) << "mine";
  EXPECT_THAT(convert(kBundled, {"--modelfile", file}).err, HasSubstr("exists"));
  EXPECT_EQ(read_bytes(file), "mine");
  std::filesystem::remove(file);
  const Ran mute = convert(model_with({{"tokenizer.json", ""}}), {"--modelfile", file});
  EXPECT_NE(mute.code, 0);
  EXPECT_FALSE(std::filesystem::exists(out()));
}

}  // namespace
}  // namespace strata::apps
