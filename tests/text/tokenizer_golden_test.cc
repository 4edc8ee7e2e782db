// SPDX-License-Identifier: Apache-2.0
// Ids and texts of Hugging Face `tokenizers` on 6,100 strings and eleven tokenizers of full size,
// and on small ones that differ in one feature each.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "tests/text/golden.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

struct Expected {
  uint64_t encoded;
  uint64_t decoded;
};

// The generator that tools/golden/make_text_golden.py writes down too.
std::vector<int32_t> random_ids(uint64_t state, int64_t size) {
  std::vector<int32_t> out;
  for (int i = 0; i < 12; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(size)));
  }
  return out;
}

std::string decoded_forms(const Tokenizer& tokenizer, const std::vector<int32_t>& plain,
                          const std::vector<int32_t>& special, size_t index) {
  const std::span<const int32_t> all(plain);
  const size_t cut = plain.size() / 2;
  const auto random = random_ids(index, tokenizer.vocab_size());
  std::string out = tokenizer.decode(special);
  for (const std::string& text : {tokenizer.decode(special, true), tokenizer.decode(all.first(cut)),
                                  tokenizer.decode(all.subspan(cut)), tokenizer.decode(random),
                                  tokenizer.decode(random, true)})
    out += std::string(1, '\0') + text;
  return out;
}

class RealTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(RealTokenizer, EqualsHuggingFace) {
  const auto tokenizer =
      Tokenizer::load(std::string(STRATA_TOKENIZERS) + "/" + GetParam() + ".json");
  const auto samples = read_samples();
  ASSERT_GE(samples.size(), 6000u);
  const std::string golden = read_file(golden_path(std::string(GetParam()) + ".bin"), 1 << 26);
  ASSERT_EQ(golden.size(), samples.size() * sizeof(Expected));
  for (size_t i = 0; i < samples.size(); ++i) {
    Expected expected{};
    std::memcpy(&expected, golden.data() + i * sizeof(Expected), sizeof(Expected));
    const auto plain = tokenizer.encode(samples[i]);
    const auto special = tokenizer.encode(samples[i], true);
    ASSERT_EQ(fnv(ids_bytes(plain) + "|" + ids_bytes(special)), expected.encoded)
        << "sample " << i << ": " << samples[i];
    ASSERT_EQ(fnv(decoded_forms(tokenizer, plain, special, i)), expected.decoded)
        << "sample " << i << ": " << samples[i];
  }
}

TEST_P(RealTokenizer, SpansTileTheTextAndStreamingEqualsTheWhole) {
  const auto tokenizer =
      Tokenizer::load(std::string(STRATA_TOKENIZERS) + "/" + GetParam() + ".json");
  // SmolLM2's vocabulary lacks a few bytes and has no unknown token: they are dropped.
  const bool drops = std::string(GetParam()) == "smollm2";
  const auto samples = read_samples();
  for (size_t i = 0; i < samples.size(); i += 3) {
    const Encoding encoding = tokenizer.encode_with_spans(samples[i]);
    ASSERT_EQ(encoding.ids, tokenizer.encode(samples[i]));
    size_t done = 0;
    for (const Span span : encoding.spans) {
      if (drops) done = std::max(done, span.begin);
      ASSERT_EQ(span.begin, done) << "sample " << i;
      ASSERT_GE(span.end, span.begin);
      done = span.end;
    }
    if (!drops) {
      ASSERT_EQ(done, samples[i].size()) << "sample " << i;
    }
    IncrementalDetokenizer stream(tokenizer);
    std::string joined;
    for (const int32_t id : encoding.ids) {
      const std::string piece = stream.push(id);
      ASSERT_TRUE(is_valid_utf8(piece)) << "sample " << i;
      joined += piece;
    }
    joined += stream.flush();
    ASSERT_EQ(joined, tokenizer.decode(encoding.ids)) << "sample " << i;
  }
}

// One run of 64 KiB, and the same doubled: n log n predicts 2 * 17/16 = 2.125 times the
// comparisons.
TEST_P(RealTokenizer, MergesRunsInNLogN) {
  const auto tokenizer =
      Tokenizer::load(std::string(STRATA_TOKENIZERS) + "/" + GetParam() + ".json");
  double worst = 0;
  int64_t most = 0;
  for (const std::string unit : {" ", "\n", "\t", "a", "e", "0", "=", "-", "\x01", "\xC3\xA9",
                                 "\xE7\x9A\x84", "\xF0\x9F\x98\x80", "\xCC\x81"}) {
    std::string run;
    while (run.size() < 65536) run += unit;
    EncodeStats once;
    EncodeStats twice;
    static_cast<void>(tokenizer.encode(run, false, &once));
    static_cast<void>(tokenizer.encode(run + run, false, &twice));
    most = std::max<int64_t>(most, once.heap_operations);
    if (once.heap_operations == 0) {
      EXPECT_EQ(twice.heap_operations, 0) << unit;
    } else {
      worst = std::max(worst, static_cast<double>(twice.heap_operations) /
                                  static_cast<double>(once.heap_operations));
    }
  }
  EXPECT_LE(worst, 2.3);
  EXPECT_GT(most, 65536) << "the heap was not used: this test would not see it grow";
  std::printf("heap operations, doubled run: at most %.3f times\n", worst);
}

TEST_P(RealTokenizer, RandomTextComesBackAndRandomIdsStream) {
  const std::string name = GetParam();
  const auto tokenizer = Tokenizer::load(std::string(STRATA_TOKENIZERS) + "/" + name + ".json");
  // Nothing is normalized away and every byte is a token; the others are lossless on less.
  if (name == "llama3" || name == "deepseek" || name == "tekken") {
    EXPECT_TRUE(rc::check([&] {
      const std::string text = sanitize_utf8(*rc::gen::container<std::string>(
          rc::gen::oneOf(rc::gen::arbitrary<char>(), rc::gen::element(' ', '\n', 'e', '\''))));
      RC_ASSERT(tokenizer.decode(tokenizer.encode(text)) == text);
    }));
  }
  EXPECT_TRUE(rc::check([&] {
    const auto ids = *rc::gen::container<std::vector<int32_t>>(
        rc::gen::inRange<int32_t>(0, static_cast<int32_t>(tokenizer.vocab_size())));
    const bool skip_special = *rc::gen::arbitrary<bool>();
    IncrementalDetokenizer stream(tokenizer, skip_special);
    std::string joined;
    for (const int32_t id : ids) {
      const std::string piece = stream.push(id);
      RC_ASSERT(is_valid_utf8(piece));
      joined += piece;
    }
    joined += stream.flush();
    RC_ASSERT(joined == tokenizer.decode(ids, skip_special));
  }));
}

INSTANTIATE_TEST_SUITE_P(All, RealTokenizer,
                         testing::Values("llama3", "deepseek", "qwen3", "qwen2.5", "qwen3.5",
                                         "mistral", "mistral-metaspace", "mistral-v3", "tekken",
                                         "gemma3", "smollm2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           return name;
                         });

TEST(TokenizerFeatures, EqualHuggingFace) {
  int num_texts = 0;
  for (const auto& line : read_lines("features.jsonl")) {
    SCOPED_TRACE(text_of(line.at("title")));
    const auto tokenizer =
        Tokenizer::parse(boost::json::serialize(line.at("tokenizer")), "features.jsonl");
    const auto& texts = line.at("texts").as_array();
    for (size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(text_of(texts[i]));
      const auto ids = boost::json::value_to<std::vector<int32_t>>(line.at("ids").at(i));
      EXPECT_EQ(tokenizer.encode(text_of(texts[i]), true), ids);
      EXPECT_EQ(tokenizer.encode_with_spans(text_of(texts[i]), true).ids, ids);
      if (!line.at("decoded").at(i).is_null()) {
        EXPECT_EQ(tokenizer.decode(ids), text_of(line.at("decoded").at(i)));
      }
      ++num_texts;
    }
  }
  EXPECT_GT(num_texts, 3000);
}

}  // namespace
}  // namespace strata::text
