// SPDX-License-Identifier: Apache-2.0
// The text side of a chat on directories in the form of real families.
#include "setup/text_stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"

namespace strata::apps {
namespace {

// Byte tokens and the control tokens that the templates below write, SentencePiece-style as in
// Gemma.
std::string tokenizer_json(const std::vector<std::string>& controls) {
  std::string vocab;
  std::string added;
  for (size_t id = 0; id < controls.size(); ++id) {
    const std::string text = "\"" + controls[id] + "\"";
    vocab += text + ":" + std::to_string(id) + ",";
    added += (id == 0 ? "" : ",") + ("{\"id\":" + std::to_string(id)) + ",\"content\":" + text +
             ",\"special\":true}";
  }
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (unsigned byte = 0; byte < 256; ++byte) {
    vocab += std::string("\"<0x") + kDigits[byte >> 4] + kDigits[byte & 15] +
             ">\":" + std::to_string(controls.size() + byte) + (byte < 255 ? "," : "");
  }
  return R"({"added_tokens":[)" + added +
         R"(],"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"_"},)"
         R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<bos>",)"
         R"("type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":)"
         R"({"<bos>":{"id":"<bos>","ids":[2],"tokens":["<bos>"]}}},)"
         R"("model":{"type":"BPE","byte_fallback":true,"vocab":{)" +
         vocab + R"(},"merges":[]}})";
}

const std::vector<std::string> kControls = {"<pad>",           "<eos>",         "<bos>",
                                            "<start_of_turn>", "<end_of_turn>", "<|im_start|>",
                                            "<|im_end|>",      "[INST]",        "[/INST]"};
constexpr int32_t kEos = 1;
constexpr int32_t kBos = 2;
constexpr int32_t kStartOfTurn = 3;
constexpr int32_t kEndOfTurn = 4;
constexpr int32_t kImEnd = 6;

class TextStackTest : public testing::Test {
 protected:
  TextStackTest() {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    std::ofstream(dir_ / "tokenizer.json") << tokenizer_json(kControls);
    // As a base model's: the end of a turn is named nowhere.
    std::ofstream(dir_ / "tokenizer_config.json") << R"({"bos_token":"<bos>","eos_token":"<eos>"})";
    std::ofstream(dir_ / "generation_config.json") << R"({"eos_token_id":1})";
  }
  ~TextStackTest() override { std::filesystem::remove_all(dir_); }

  // `path` is below tests/data.
  TextStack with_template(const std::string& path, const TemplateChoice& choice = {}) {
    const std::string file = std::string(STRATA_SOURCE_DIR) + "/tests/data/" + path + ".jinja";
    std::ofstream(dir_ / "chat_template.jinja") << read_file(file, 1 << 20);
    return TextStack(ModelTexts(dir_.string()), choice);
  }

  const std::filesystem::path dir_ =
      std::filesystem::temp_directory_path() / "strata_text_stack_test";
};

TEST_F(TextStackTest, TheTemplateNamesTheEndOfATurn) {
  const TextStack gemma = with_template("text/templates/gemma3");
  EXPECT_EQ(gemma.end_tokens().stop, std::vector<int32_t>{kEos});
  EXPECT_EQ(gemma.find_turn_end_token(), kEndOfTurn);
  EXPECT_EQ(with_template("third_party/templates/qwen25").find_turn_end_token(), kImEnd);
  EXPECT_EQ(with_template("third_party/templates/qwen3", {.vars = R"({"enable_thinking":false})"})
                .find_turn_end_token(),
            kImEnd);
  for (const char* name : {"mistral_v1", "mistral_v3", "mistral_tekken", "mistral_v7", "llama2"})
    EXPECT_EQ(with_template(std::string("third_party/templates/") + name).find_turn_end_token(),
              kEos)
        << name;
}

TEST_F(TextStackTest, ATemplateWithoutAnEndOfTurnNamesNone) {
  for (const char* source : {"{% for m in messages %}{{ m.content }}\n{% endfor %}",
                             "{% for m in messages %}{{ m.content }}. {% endfor %}",
                             "{{ messages[0].content }}<|im_end|>"}) {
    std::ofstream(dir_ / "chat_template.jinja") << source;
    EXPECT_EQ(TextStack(dir_.string()).find_turn_end_token(), std::nullopt) << source;
  }
  std::filesystem::remove(dir_ / "chat_template.jinja");
  EXPECT_THROW(static_cast<void>(TextStack(dir_.string()).find_turn_end_token()), Error);
}

TEST_F(TextStackTest, AnotherTemplateAndVariables) {
  const std::string file = (dir_ / "other.jinja").string();
  std::ofstream(file) << "{{ tone }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}";
  const TextStack stack = with_template("text/templates/gemma3", {file, R"({"tone":"calm "})"});
  const std::string one = R"([{"role":"user","content":"Hi"}])";
  EXPECT_EQ(stack.render({.messages = one}), "calm Hi<|im_end|>");
  EXPECT_EQ(stack.render({.messages = one, .vars = R"({"tone":"brisk "})"}), "brisk Hi<|im_end|>");
  EXPECT_EQ(stack.find_turn_end_token(), kImEnd);
  const auto fault = [&](const TemplateChoice& choice) -> std::string {
    try {
      with_template("text/templates/gemma3", choice);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(fault({.file = file + "x"}), testing::HasSubstr("--chat-template: " + file + "x: "));
  EXPECT_THAT(fault({.vars = "[1]"}), testing::HasSubstr("--vars"));
}

// The template writes <bos>; the post-processor must not add a second one.
TEST_F(TextStackTest, AChatOfGemmaBeginsOnce) {
  const TextStack gemma = with_template("text/templates/gemma3");
  const std::string text =
      gemma.render({.messages = R"([{"role":"system","content":"Be brief."},)"
                                R"({"role":"user","content":[{"type":"text","text":" Hi "}]}])",
                    .add_generation_prompt = true});
  EXPECT_EQ(text, "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n");
  const std::vector<int32_t> ids = gemma.tokenizer().encode(text);
  EXPECT_EQ(ids[0], kBos);
  EXPECT_EQ(ids[1], kStartOfTurn);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kBos), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kEndOfTurn), 1);
  EXPECT_EQ(gemma.tokenizer().encode("Hi", /*add_special=*/true)[0], kBos);
}

}  // namespace
}  // namespace strata::apps
