// SPDX-License-Identifier: Apache-2.0
// DataTest: files in a folder of the test, read with the bundled tokenizer and a renderer of
// ChatML.
#pragma once
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/dataset.h"

namespace strata::data {

inline std::string chatml(const std::string& messages, const std::string& tools, bool with_prompt) {
  std::string out = tools.empty() ? "" : "<|im_start|>system\n" + tools + "<|im_end|>\n";
  const boost::json::array turns = boost::json::parse(messages).as_array();
  for (const auto& value : turns) {
    const auto& turn = value.as_object();
    out += "<|im_start|>" + std::string(turn.at("role").as_string()) + "\n" +
           std::string(turn.at("content").as_string()) + "<|im_end|>\n";
  }
  return out + (with_prompt ? "<|im_start|>assistant\n" : "");
}

inline constexpr auto kRender = [](const text::ChatRequest& request) {
  return text::RenderedChat{
      .text = chatml(request.messages, request.tools, request.add_generation_prompt)};
};

inline std::string gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

class DataTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "strata_data_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string write(const std::string& name, const std::string& content) const {
    const std::string path = root_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  Dataset read(const std::vector<Source>& sources, const ReadOptions& options = {.max_length = 500},
               TrainOn train_on = TrainOn::kLast, bool has_template = true) const {
    const ExampleContext context{.tokenizer = tokenizer_,
                                 .end_tokens = end_,
                                 .render = kRender,
                                 .train_on = train_on,
                                 .has_template = has_template};
    return read_dataset(sources, context, options);
  }
  std::string fault(const std::vector<Source>& sources,
                    const ReadOptions& options = {.max_length = 500}) const {
    try {
      read(sources, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  static void expect_equal(const Dataset& a, const Dataset& b) {
    ASSERT_EQ(a.examples.size(), b.examples.size());
    for (size_t i = 0; i < a.examples.size(); ++i) {
      SCOPED_TRACE(i);
      const Example x = a.examples[i], y = b.examples[i];
      EXPECT_EQ(x.tokens, y.tokens);
      EXPECT_EQ(x.targets, y.targets);
      EXPECT_EQ(x.weights, y.weights);
      EXPECT_EQ(x.num_trained, y.num_trained);
    }
  }

  std::string root_;
  const text::Tokenizer tokenizer_ =
      text::Tokenizer::load(std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3");
  const EndTokens end_ =
      load_end_tokens(std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3", tokenizer_);
};

}  // namespace strata::data
