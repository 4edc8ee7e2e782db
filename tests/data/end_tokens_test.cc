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

// What the published directories of a family say, and what follows.
struct Published {
  std::string model;
  std::vector<std::pair<int, std::string>> controls;
  std::string config, generation;  // eos_token_id of config.json and generation_config.json
  std::string named;               // eos_token of tokenizer_config.json
  int32_t append;
  Ids stop;
};

const std::vector<Published> kPublished = {
    {"qwen3",
     {{151643, "<|endoftext|>"}, {151645, "<|im_end|>"}},
     "151645",
     "[151645,151643]",
     "<|im_end|>",
     151645,
     {151643, 151645}},
    {"qwen3 base",
     {{151643, "<|endoftext|>"}},
     "151643",
     "151643",
     "<|endoftext|>",
     151643,
     {151643}},
    {"mistral", {{1, "<s>"}, {2, "</s>"}}, "2", "2", "</s>", 2, {2}},
    // The end of a text, of a message that calls a tool, and of a turn.
    {"llama 3.1 instruct",
     {{128001, "<|end_of_text|>"}, {128008, "<|eom_id|>"}, {128009, "<|eot_id|>"}},
     "[128001,128008,128009]",
     "[128001,128008,128009]",
     "<|eot_id|>",
     128009,
     {128001, 128008, 128009}},
    // A final answer ends by <|return|>, a call by <|call|>.
    {"gpt-oss",
     {{199999, "<|endoftext|>"}, {200002, "<|return|>"}, {200012, "<|call|>"}},
     "200002",
     "[200002,199999,200012]",
     "<|return|>",
     200002,
     {199999, 200002, 200012}},
    // A turn ends where the next begins, or where a tool is to answer.
    {"glm4, glm4_moe",
     {{151329, "<|endoftext|>"}, {151336, "<|user|>"}, {151338, "<|observation|>"}},
     "[151329,151336,151338]",
     "[151329,151336,151338]",
     "<|endoftext|>",
     151329,
     {151329, 151336, 151338}},
    {"phi-4-mini",
     {{199999, "<|endoftext|>"}, {200020, "<|end|>"}},
     "199999",
     "[200020,199999]",
     "<|endoftext|>",
     199999,
     {199999, 200020}},
    {"granite", {{0, "<|end_of_text|>"}}, "0", "0", "<|end_of_text|>", 0, {0}},
    {"olmo2", {{100257, "<|endoftext|>"}}, "100257", "100257", "<|endoftext|>", 100257, {100257}},
    {"smollm3", {{128012, "<|im_end|>"}}, "128012", "128012", "<|im_end|>", 128012, {128012}},
    {"deepseek-v3", {{1, "<end>"}}, "1", "1", "<end>", 1, {1}},
    {"kimi-k2", {{163586, "<|im_end|>"}}, "163586", "163586", "<|im_end|>", 163586, {163586}},
    {"lfm2", {{7, "<|im_end|>"}}, "7", "7", "<|im_end|>", 7, {7}},
    // The lists alone name <end_of_turn>.
    {"gemma3", {{1, "<eos>"}, {106, "<end_of_turn>"}}, "[1,106]", "[1,106]", "<eos>", 1, {1, 106}},
};

TEST_F(EndTokensTest, OfPublishedFamilies) {
  for (const Published& row : kPublished) {
    SCOPED_TRACE(row.model);
    const text::Tokenizer tokenizer = with_controls(row.controls);
    const std::string config = R"({"eos_token_id":)" + row.config + "}";
    const std::string named = R"("eos_token":")" + row.named + "\"";
    fill(config, R"({"eos_token_id":)" + row.generation + "}", "{" + named + "}");
    expect(tokenizer, row.append, row.stop);
    // An older form: an object.
    fill(config, R"({"eos_token_id":)" + row.generation + "}",
         R"({"eos_token":{"content":")" + row.named + "\"}}");
    expect(tokenizer, row.append, row.stop);
    // A folder without generation_config.json: the config's, and the named one.
    fill(R"({"eos_token_id":)" + row.generation + "}", "", "{" + named + "}");
    expect(tokenizer, row.append, row.stop);
  }
}

TEST_F(EndTokensTest, ATokenizerThatNamesNoneAppendsTheFirstOfTheList) {
  fill("", R"({"eos_token_id":[1,106]})", "");
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
