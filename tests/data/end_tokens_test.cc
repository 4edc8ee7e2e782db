// SPDX-License-Identifier: Apache-2.0
// End tokens as the directories of real families name them.
#include "data/end_tokens.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace strata::data {
namespace {

using Ids = std::vector<int32_t>;

// A tokenizer of two letters and the control tokens of a family, at their real ids.
text::Tokenizer with_controls(const std::vector<std::pair<int, std::string>>& controls) {
  std::string added;
  for (const auto& [id, content] : controls) {
    added += (added.empty() ? "{\"id\":" : ",{\"id\":") + std::to_string(id) + ",\"content\":\"" +
             content + "\",\"special\":true}";
  }
  return text::Tokenizer::parse(R"({"model":{"type":"BPE","vocab":{"a":300,"b":301},"merges":[]},)"
                                R"("added_tokens":[)" +
                                    added + "]}",
                                "tokenizer.json");
}

const text::Tokenizer kQwen =
    with_controls({{151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}});
const text::Tokenizer kMistral = with_controls({{0, "<unk>"}, {1, "<s>"}, {2, "</s>"}});
const text::Tokenizer kGemma =
    with_controls({{1, "<eos>"}, {2, "<bos>"}, {105, "<start_of_turn>"}, {106, "<end_of_turn>"}});

class EndTokensTest : public testing::Test {
 protected:
  ~EndTokensTest() override { std::filesystem::remove_all(dir_); }

  // The directory holds these files and no others; an empty text is no file.
  void fill(const std::string& config, const std::string& generation,
            const std::string& tokenizer) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    if (!config.empty()) std::ofstream(dir_ / "config.json") << config;
    if (!generation.empty()) std::ofstream(dir_ / "generation_config.json") << generation;
    if (!tokenizer.empty()) std::ofstream(dir_ / "tokenizer_config.json") << tokenizer;
  }
  void expect(const text::Tokenizer& tokenizer, int32_t append, const Ids& stop) {
    const EndTokens tokens = load_end_tokens(dir_.string(), tokenizer);
    EXPECT_EQ(tokens.append, append);
    EXPECT_EQ(tokens.stop, stop);
  }
  std::string fault(const text::Tokenizer& tokenizer) {
    try {
      static_cast<void>(load_end_tokens(dir_.string(), tokenizer));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  const std::filesystem::path dir_ =
      std::filesystem::temp_directory_path() / "strata_end_tokens_test";
};

TEST_F(EndTokensTest, QwenEndsATurnOrTheText) {
  fill(R"({"eos_token_id":151645})", R"({"eos_token_id":[151645,151643]})",
       R"({"eos_token":"<|im_end|>","bos_token":null})");
  expect(kQwen, 151645, {151643, 151645});
  // The base model.
  fill(R"({"eos_token_id":151643})", R"({"eos_token_id":151643})",
       R"({"eos_token":"<|endoftext|>"})");
  expect(kQwen, 151643, {151643});
}

TEST_F(EndTokensTest, MistralHasOne) {
  fill(R"({"eos_token_id":2})", R"({"eos_token_id":2})", R"({"eos_token":{"content":"</s>"}})");
  expect(kMistral, 2, {2});
}

// A turn of Gemma's ends with <end_of_turn>, which only the lists name: eos_token is <eos>.
TEST_F(EndTokensTest, GemmaEndsATurnOrTheText) {
  const std::string list = R"({"eos_token_id":[1,106]})";
  const std::string named = R"({"eos_token":"<eos>"})";
  fill(list, list, named);
  expect(kGemma, 1, {1, 106});
  fill(list, "", named);
  expect(kGemma, 1, {1, 106});
  fill("", list, "");
  expect(kGemma, 1, {1, 106});
}

TEST_F(EndTokensTest, TheServerEndsAtWhatAnyFileNames) {
  fill(R"({"eos_token_id":[1,106]})", R"({"eos_token_id":1})", R"({"eos_token":"<eos>"})");
  expect(kGemma, 1, {1});
  EXPECT_EQ(load_stop_ids_of_all_configs(dir_.string(), kGemma), (Ids{1, 106}));
}

TEST_F(EndTokensTest, NamesTheFileAtFault) {
  fill("", R"({"eos_token_id":[1,107000]})", "");
  EXPECT_NE(fault(kGemma).find("generation_config.json: eos_token_id: got 107000"),
            std::string::npos)
      << fault(kGemma);
  fill("", "", R"({"eos_token":"<|im_end|>"})");
  EXPECT_NE(fault(kGemma).find("tokenizer_config.json: eos_token: '<|im_end|>'"), std::string::npos)
      << fault(kGemma);
}

}  // namespace
}  // namespace strata::data
