// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"

namespace strata::data {
namespace {

const std::string kModel = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";

std::string write_lines(const char* name, const std::string& content) {
  const std::string path = testing::TempDir() + "dataset_" + name + ".jsonl";
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

constexpr auto kNoRender = [](const text::ChatRequest&) { return text::RenderedChat(); };

class DatasetTest : public testing::Test {
 protected:
  Dataset read(const std::string& path, int64_t max_length = 100) {
    const ExampleContext context{.tokenizer = tokenizer_, .end_tokens = end_, .render = kNoRender};
    return read_dataset({{path}}, context, {.max_length = max_length});
  }
  std::string fault(const std::string& path, int64_t max_length = 100) {
    try {
      read(path, max_length);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  const text::Tokenizer tokenizer_ = text::Tokenizer::load(kModel);
  const EndTokens end_ = load_end_tokens(kModel, tokenizer_);
};

TEST_F(DatasetTest, KeepsOrderSkipsBlankLinesTakesAnyLineEnd) {
  const Dataset dataset =
      read(write_lines("order", "{\"text\": \"1 2\"}\r\n\n  \n{\"text\": \"3 4\", \"id\": 1}"));
  ASSERT_EQ(dataset.examples.size(), 2u);
  EXPECT_EQ(tokenizer_.decode(dataset.examples[1].tokens), "3 4");
  EXPECT_EQ(dataset.num_lines, 2);
  EXPECT_EQ(dataset.ignored_fields, std::vector<std::string>{"id"});
  int64_t tokens = 0;
  for (size_t i = 0; i < dataset.examples.size(); ++i)
    tokens += static_cast<int64_t>(dataset.examples[i].tokens.size());
  EXPECT_EQ(dataset.num_tokens, tokens);
  EXPECT_EQ(dataset.num_trained, tokens);
}

TEST_F(DatasetTest, LongExamplesAreDroppedAndCounted) {
  // "1 2 3" is 1, space, 2, ...: at least 3 tokens and the end; digits stand alone.
  const auto length = static_cast<int64_t>(tokenizer_.encode("1 2 3").size()) + 1;
  const std::string path = write_lines("long", "{\"text\": \"1 2 3\"}\n{\"text\": \"1\"}\n");
  EXPECT_EQ(read(path, length).num_too_long, 0);
  EXPECT_EQ(read(path, length - 1).num_too_long, 1);
  EXPECT_EQ(read(path, length - 1).examples.size(), 1u);
  EXPECT_EQ(fault(path, 1), path + ": all 2 examples are longer than 1 tokens; raise --max-length");
}

TEST_F(DatasetTest, EveryBadLineIsNamedAndNothingStarts) {
  std::string content = "{\"text\": \"fine\"}\n";
  for (int i = 0; i < 7; ++i) content += "{\"text\": 1}\n";
  const std::string path = write_lines("bad", content);
  const std::string message = fault(path);
  EXPECT_TRUE(message.starts_with(path + ":2: text: got a number, want a string\n" + path + ":3: "))
      << message;
  EXPECT_TRUE(message.ends_with("\nand 2 more bad lines")) << message;
}

TEST_F(DatasetTest, EmptyAndMissingFiles) {
  const std::string path = write_lines("empty", "\n\n");
  EXPECT_EQ(fault(path), path + ": no examples in it");
  EXPECT_NE(fault("/nonexistent/x.jsonl").find("/nonexistent/x.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace strata::data
