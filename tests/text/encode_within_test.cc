// SPDX-License-Identifier: Apache-2.0
// Encoding up to a number of tokens: the same ids, or nothing, and no more memory than was told.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "tests/base/heap_count.h"
#include "tests/text/golden.h"
#include "tests/text/tiny_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::text {
namespace {

using strata::testing::heap_peak_of;

const std::vector<Tokenizer>& tokenizers() {
  static const std::vector<Tokenizer> kAll = {
      Tokenizer::parse(tiny_byte_level_json(), "tiny"),
      Tokenizer::parse(tiny_sentencepiece_json(), "tiny"),
      Tokenizer::load(STRATA_SOURCE_DIR "/models/tiny-qwen3"),
  };
  return kAll;
}

void expect_same(const Tokenizer& tokenizer, const std::string& text, bool add_special = false) {
  const std::vector<int32_t> ids = tokenizer.encode(text, add_special);
  EXPECT_EQ(tokenizer.encode_within(text, {.most = ids.size()}, add_special), ids);
  EXPECT_EQ(tokenizer.encode_within(text, {.most = ids.size() + 100}, add_special), ids);
  for (const size_t less : {size_t{1}, ids.size() / 2, ids.size()}) {
    if (less == 0 || less > ids.size()) continue;
    EXPECT_EQ(tokenizer.encode_within(text, {.most = ids.size() - less}, add_special),
              std::nullopt);
  }
}

TEST(EncodeWithin, IsEncodeOfWhatFits) {
  for (const Tokenizer& tokenizer : tokenizers()) {
    for (const char* unit :
         {"a", " ", "the ", "  the\n", "\xC3\xA9", "\xF0\x9F\x98\x80x", "e\xCC\x81", "\xFF", "\n\n",
          "<|end|>", "<s>", "<|im_end|> ", "\xE2\x96\x81", "x\xE2\x96\x81y"}) {
      std::string text;
      for (int count = 0; text.size() < 20'000; ++count) {
        if (count < 4 || text.size() + 100 > 20'000) expect_same(tokenizer, text);
        for (int i = 0; i < (count < 4 ? 1 : 500); ++i) text += unit;
      }
      expect_same(tokenizer, text);
    }
  }
}

RC_GTEST_PROP(EncodeWithin, OfAnyText, ()) {
  const auto text = *rc::gen::container<std::string>(
      rc::gen::oneOf(rc::gen::arbitrary<char>(), rc::gen::element('a', ' ', 't', 'h', 'e', '\n')));
  for (const Tokenizer& tokenizer : tokenizers()) {
    expect_same(tokenizer, text, *rc::gen::arbitrary<bool>());
  }
}

// Of every tokenizer that the tests have.
TEST(EncodeWithin, IsEncodeForAllTokenizers) {
  const auto samples = read_samples();
  for (const char* name : {"llama3", "deepseek", "qwen3", "qwen2.5", "qwen3.5", "mistral",
                           "mistral-metaspace", "mistral-v3", "tekken", "gemma3", "smollm2"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = Tokenizer::load(std::string(STRATA_TOKENIZERS) + "/" + name + ".json");
    std::string all;
    for (size_t i = 0; i < samples.size(); i += 7) {
      expect_same(tokenizer, samples[i], i % 2 == 1);
      all += samples[i];
    }
    expect_same(tokenizer, all);
    for (const char* unit : {" ", "a", "\n", "\xE7\x9A\x84"}) {
      std::string run;
      while (run.size() < 100'000) run += unit;
      expect_same(tokenizer, run);
      EXPECT_LE(tokenizer.least_tokens(run), std::ssize(tokenizer.encode(run)));
    }
  }
}

struct Cost {
  size_t told = 0;   // at most
  size_t taken = 0;  // likewise
  bool fits = false;
};

Cost cost(const Tokenizer& tokenizer, const std::string& text, size_t most) {
  Cost out;
  const EncodeBound bound = {.most = most,
                             .hold = [&](size_t bytes) { out.told = std::max(out.told, bytes); }};
  out.taken = heap_peak_of([&] { out.fits = tokenizer.encode_within(text, bound).has_value(); });
  return out;
}

constexpr size_t kMiB = 1 << 20;
constexpr size_t kUntold = 256 << 10;  // short pieces, and what is small

TEST(EncodeWithin, TakesNoMoreThanItTold) {
  for (const Tokenizer& tokenizer : tokenizers()) {
    for (const char* unit : {"a", " ", "the quick one ", "\xC3\xA9", "e\xCC\x81", "\xFF"}) {
      std::string text;
      while (text.size() < kMiB) text += unit;
      const Cost whole = cost(tokenizer, text, SIZE_MAX);
      EXPECT_TRUE(whole.fits);
      EXPECT_LE(whole.taken, whole.told + kUntold) << unit;
    }
  }
}

// Neither all pieces of a text, nor anything for one that is too long by its bytes alone.
TEST(EncodeWithin, StopsWhereThereAreMore) {
  for (const Tokenizer& tokenizer : tokenizers()) {
    std::string words;
    while (words.size() < 8 * kMiB) words += "the quick one ";
    const Cost stopped = cost(tokenizer, words, 1000);
    EXPECT_FALSE(stopped.fits);
    EXPECT_LE(stopped.taken, stopped.told + kUntold);
    EXPECT_LE(stopped.told, 8 * words.size());
    const Cost refused = cost(tokenizer, std::string(8 * kMiB, 'a'), 1000);
    EXPECT_FALSE(refused.fits);
    EXPECT_LE(refused.told, 9 * 8 * kMiB);
    EXPECT_LE(refused.taken, refused.told + kUntold);
  }
}

TEST(EncodeWithin, WhatTheCallbackThrowsEndsIt) {
  const EncodeBound bound = {.most = SIZE_MAX, .hold = [](size_t bytes) {
                               if (bytes > kMiB) throw std::bad_alloc();
                             }};
  const std::string text(4 * kMiB, 'a');
  for (const Tokenizer& tokenizer : tokenizers())
    EXPECT_THROW((void)tokenizer.encode_within(text, bound), std::bad_alloc);
}

}  // namespace
}  // namespace strata::text
