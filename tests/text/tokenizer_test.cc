// SPDX-License-Identifier: Apache-2.0
// The tokenizer on files small enough to write down: refusals that name what is asked for, work
// that grows as n log n, and random text.
#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/text/tiny_tokenizer.h"
#include "text/tokenizer/detokenizer.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

Tokenizer byte_level() {
  static const Tokenizer kTokenizer = Tokenizer::parse(tiny_byte_level_json(), "tiny");
  return kTokenizer;
}

Tokenizer sentencepiece() {
  static const Tokenizer kTokenizer = Tokenizer::parse(tiny_sentencepiece_json(), "tiny");
  return kTokenizer;
}

std::string replaced(std::string text, const std::string& old, const std::string& with) {
  const size_t at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return text.replace(at, old.size(), with);
}

void expect_refused(const std::string& json, ErrorCode code, const std::string& named) {
  try {
    Tokenizer::parse(json, "some.json");
    ADD_FAILURE() << "accepted, wanted a refusal that names " << named;
  } catch (const Error& error) {
    EXPECT_EQ(error.code, code) << error.what();
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("some.json"), std::string::npos) << error.what();
  }
}

TEST(Tokenizer, RefusesWhatItLacksByName) {
  const std::string good = tiny_byte_level_json();
  struct Case {
    const char* old;
    const char* with;
    const char* named;
  };
  constexpr Case kCases[] = {
      {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}", "Lowercase"},
      {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "Unigram"},
      {"\"type\":\"BPE\",", "\"type\":\"BPE\",\"dropout\":0.1,", "dropout"},
      {"\"type\":\"BPE\",", "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",",
       "end_of_word_suffix"},
      {"\"post_processor\":null", "\"post_processor\":{\"type\":\"BertProcessing\"}",
       "BertProcessing"},
      {"\"type\":\"Split\"", "\"type\":\"UnicodeScripts\"", "UnicodeScripts"},
      {"\"behavior\":\"Isolated\"", "\"behavior\":\"Sideways\"", "Sideways"},
      {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"WordPiece\"}", "WordPiece"},
      {"\"invert\":false", "\"invert\":false,\"speed\":1", "speed"},
      {"(?i:'s", "(?<name>'s", "pattern byte"},
      {"\\\\p{N}{1,3}", "\\\\p{Klingon}", "Klingon"},
  };
  Tokenizer::parse(good, "some.json");
  for (const Case& c : kCases)
    expect_refused(replaced(good, c.old, c.with), ErrorCode::kUnsupported, c.named);
}

TEST(Tokenizer, RefusesBrokenFilesByField) {
  const std::string good = tiny_byte_level_json();
  expect_refused("", ErrorCode::kInvalidArgument, "JSON");
  expect_refused("[]", ErrorCode::kInvalidArgument, "wanted object");
  expect_refused("{}", ErrorCode::kInvalidArgument, "'model' is missing");
  expect_refused(replaced(good, "\"t h\"", "\"t \\u00e7\\u00e7\""), ErrorCode::kInvalidArgument,
                 "merges[0]");
  expect_refused(replaced(good, "\"t h\"", "\"th\""), ErrorCode::kInvalidArgument, "two tokens");
  expect_refused(replaced(good, ":255", ":3"), ErrorCode::kInvalidArgument, "two tokens");
  expect_refused(replaced(good, ":255", ":-1"), ErrorCode::kInvalidArgument, "integer from 0");
  expect_refused(replaced(good, ":255", ":4000000000"), ErrorCode::kInvalidArgument, "integer");
  expect_refused(replaced(good, "\"content\":\"<|end|>\"", "\"content\":\"\""),
                 ErrorCode::kInvalidArgument, "added_tokens[0]");
  expect_refused(replaced(good, "\"content\":\"<|end|>\"", "\"content\":\"the\""),
                 ErrorCode::kInvalidArgument, "'the'");
  expect_refused(std::string(100, '['), ErrorCode::kInvalidArgument, "JSON");
}

// A file of a few bytes does not take gigabytes: as it is loaded, or with the texts of users.
TEST(Tokenizer, RefusesFilesThatWouldTakeFarMoreThanTheyHold) {
  const std::string good = tiny_byte_level_json();
  expect_refused(replaced(good, ":255", ":9999999"), ErrorCode::kInvalidArgument, "integer from 0");
  expect_refused(replaced(good, "\"added_tokens\":[{\"id\":", "\"added_tokens\":[{\"id\":9999"),
                 ErrorCode::kInvalidArgument, "id");
  const Tokenizer growing = Tokenizer::parse(
      replaced(good, "\"normalizer\":null",
               "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
               "\"content\":\"" +
                   std::string(10'000, 'b') + "\"}"),
      "some.json");
  EXPECT_GT(growing.encode("ca").size(), 100U);
  EXPECT_THROW(static_cast<void>(growing.encode(std::string(100'000, 'a'))), Error);
}

// Every byte is a piece, and the second pattern takes 2^14 ways through each.
TEST(Tokenizer, PatternsTogetherAreBounded) {
  const auto split = [](const std::string& pattern) {
    return "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" + pattern +
           "\"},\"behavior\":\"Isolated\",\"invert\":false},";
  };
  const std::string good = tiny_byte_level_json(), begin = "\"pretokenizers\":[";
  std::string ways, many = begin;
  for (int i = 0; i < 14; ++i) ways += "(?:b?|c?)";
  const Tokenizer slow =
      Tokenizer::parse(replaced(good, begin, begin + split(".") + split(ways + "z")), "some.json");
  EXPECT_EQ(slow.encode("a").size(), 1u);
  EXPECT_THROW(static_cast<void>(slow.encode(std::string(100, 'a'))), Error);
  for (int i = 0; i < 64; ++i) many += split("a");
  expect_refused(replaced(good, begin, many), ErrorCode::kUnsupported, "more than 64 steps");
}

TEST(Tokenizer, LoadsADirectoryOrAFile) {
  const auto dir = std::filesystem::temp_directory_path() / "strata_tokenizer_test";
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "tokenizer.json") << tiny_byte_level_json();
  EXPECT_EQ(Tokenizer::load(dir.string()).vocab_size(), byte_level().vocab_size());
  EXPECT_EQ(Tokenizer::load((dir / "tokenizer.json").string()).encode("the"),
            byte_level().encode("the"));
  std::filesystem::remove_all(dir);
  EXPECT_THROW(Tokenizer::load(dir.string()), Error);
}

TEST(Tokenizer, FindsTokens) {
  const Tokenizer tokenizer = byte_level();
  const auto end = tokenizer.token_to_id("<|end|>");
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(tokenizer.encode("a<|end|>")[1], *end);
  EXPECT_TRUE(tokenizer.is_special(*end));
  EXPECT_FALSE(tokenizer.is_special(0));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_EQ(tokenizer.id_to_token(*end), "<|end|>");
  EXPECT_EQ(tokenizer.id_to_token(static_cast<int32_t>(tokenizer.vocab_size())), std::nullopt);
  EXPECT_EQ(tokenizer.token_to_id("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{*end, 64}, true),
            tokenizer.decode(std::vector<int32_t>{64}));
}

TEST(Tokenizer, SpansNameTheBytesOfEachToken) {
  const std::string text = "in\xff the<|end|>";
  const Encoding encoding = byte_level().encode_with_spans(text);
  const std::vector<std::string> wanted = {"in", "\xff", "\xff", "\xff", " the", "<|end|>"};
  ASSERT_EQ(encoding.spans.size(), wanted.size());
  // U+FFFD is three tokens for one bad byte: the first two are empty.
  for (const size_t i : {size_t{0}, size_t{3}, size_t{4}, size_t{5}})
    EXPECT_EQ(text.substr(encoding.spans[i].begin, encoding.spans[i].end - encoding.spans[i].begin),
              wanted[i]);
}

// One run of 64 KiB, and the same doubled: n log n predicts 2 * 17/16 = 2.125 times the
// comparisons.
TEST(Tokenizer, MergesInNLogN) {
  for (const auto& tokenizer : {byte_level(), sentencepiece()}) {
    for (const std::string unit : {"a", " ", "e", "th", "\xC3\xA9", "\xE7\x9A\x84", "the "}) {
      std::string run;
      while (run.size() < 65536) run += unit;
      EncodeStats once;
      EncodeStats twice;
      const auto ids = tokenizer.encode(run, false, &once);
      EXPECT_FALSE(ids.empty());
      static_cast<void>(tokenizer.encode(run + run, false, &twice));
      EXPECT_LE(static_cast<double>(twice.heap_operations),
                2.3 * static_cast<double>(once.heap_operations))
          << unit;
    }
  }
  EncodeStats stats;
  static_cast<void>(byte_level().encode(std::string(65536, 'a'), false, &stats));
  EXPECT_GT(stats.heap_operations, 65536u)
      << "the heap was not used: this test would not see it grow";
}

// Text that mixes what the vocabularies have with anything else.
rc::Gen<std::string> any_text() {
  const auto piece =
      rc::gen::oneOf(rc::gen::element<std::string>("the", " the", "in ", "aaaa", "<|end|>", "<s>",
                                                   "\xC3\xA9", "\xE7\x9A\x84", "\xF0\x9F\x98\x80",
                                                   "  ", "\n", "'s", "12345", "\xE2\x96\x81"),
                     rc::gen::container<std::string>(rc::gen::arbitrary<char>()));
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(piece), [](const auto& parts) {
    std::string out;
    for (const std::string& part : parts) out += part;
    return out;
  });
}

RC_GTEST_PROP(Tokenizer, ByteLevelIsLossless, ()) {
  const std::string text = sanitize_utf8(*any_text());
  RC_ASSERT(byte_level().decode(byte_level().encode(text)) == text);
}

// Byte fallback loses nothing but what U+2581 stands for, and one leading space that it adds
// itself.
RC_GTEST_PROP(Tokenizer, SentencePieceIsLosslessWithoutItsMark, ()) {
  std::string text = sanitize_utf8(*any_text());
  for (const std::string taken : {"\xE2\x96\x81", "<s>", "</s>", "<unk>"})
    for (size_t at = text.find(taken); at != std::string::npos; at = text.find(taken))
      text.replace(at, taken.size(), "x");
  RC_ASSERT(sentencepiece().decode(sentencepiece().encode(text)) == text);
}

RC_GTEST_PROP(Tokenizer, SpansTileAnyText, ()) {
  const std::string text = *any_text();
  for (const Tokenizer& tokenizer : {byte_level(), sentencepiece()}) {
    const Encoding encoding = tokenizer.encode_with_spans(text);
    RC_ASSERT(encoding.ids == tokenizer.encode(text));
    size_t done = 0;
    for (const Span span : encoding.spans) {
      RC_ASSERT(span.begin == done);
      done = span.end;
    }
    RC_ASSERT(done == text.size());
  }
}

RC_GTEST_PROP(IncrementalDetokenizer, PiecesJoinedEqualTheWhole, ()) {
  for (const Tokenizer& tokenizer : {byte_level(), sentencepiece()}) {
    const auto size = static_cast<int32_t>(tokenizer.vocab_size());
    // Low ids, where the byte tokens are, and any.
    const auto ids = *rc::gen::container<std::vector<int32_t>>(
        rc::gen::oneOf(rc::gen::inRange<int32_t>(0, 260), rc::gen::inRange<int32_t>(-1, size + 1)));
    for (const bool skip_special : {false, true}) {
      IncrementalDetokenizer stream(tokenizer, skip_special);
      std::string joined;
      for (const int32_t id : ids) {
        const std::string piece = stream.push(id);
        RC_ASSERT(is_valid_utf8(piece));
        joined += piece;
      }
      joined += stream.flush();
      RC_ASSERT(joined == tokenizer.decode(ids, skip_special));
      RC_ASSERT(stream.flush().empty());
    }
  }
}

TEST(IncrementalDetokenizer, HoldsHalfACharacter) {
  const Tokenizer tokenizer = byte_level();
  // U+1F601 is F0 9F 98 81; the tiny vocabulary joins the first three bytes.
  const auto ids = tokenizer.encode("\U0001F601");
  ASSERT_EQ(ids.size(), 2u);
  IncrementalDetokenizer stream(tokenizer);
  EXPECT_EQ(stream.push(ids[0]), "");
  EXPECT_EQ(stream.push(ids[1]), "\U0001F601");
  EXPECT_EQ(stream.push(ids[0]), "");
  EXPECT_EQ(stream.flush(), "\xEF\xBF\xBD");
}

// A lower bound, for real texts and the longest tokens of the vocabulary.
TEST(Tokenizer, TellsHowManyTokensThereAreAtLeast) {
  const Tokenizer tokenizer = Tokenizer::load(STRATA_SOURCE_DIR "/models/tiny-qwen3");
  std::vector<std::string> texts = {"",
                                    "a",
                                    "Hello, world!",
                                    "e\u0301e\u0301e\u0301",
                                    std::string(5000, ' '),
                                    std::string(5000, 'a'),
                                    std::string(5000, '\n')};
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string token = tokenizer.decode({&id, 1});
    std::string many;
    for (int i = 0; i < 8; ++i) many += token;
    texts.push_back(many);
  }
  for (const std::string& text : texts) {
    EXPECT_LE(tokenizer.least_tokens(text), std::ssize(tokenizer.encode(text))) << text;
  }
  EXPECT_GT(tokenizer.least_tokens(std::string(100'000, ' ')), 100);
}

// What the last call of a library set is not what a model reads.
TEST(Tokenizer, TruncationAndPaddingAreNotAsked) {
  const std::string good = tiny_byte_level_json();
  const std::string text = "the inn and the other inn, further than eight tokens";
  const Tokenizer saved = Tokenizer::parse(
      replaced(replaced(good, "\"truncation\":null",
                        R"("truncation":{"direction":"Right","max_length":8,)"
                        R"("strategy":"LongestFirst","stride":0})"),
               "\"padding\":null",
               R"("padding":{"strategy":{"Fixed":64},"direction":"Left","pad_to_multiple_of":8,)"
               R"("pad_id":270,"pad_type_id":0,"pad_token":"<|end|>"})"),
      "saved.json");
  EXPECT_EQ(saved.encode(text, true), byte_level().encode(text, true));
  EXPECT_GT(saved.encode(text).size(), 8u);
  EXPECT_EQ(
      Tokenizer::parse(replaced(good, "\"padding\":null", "\"padding\":{}"), "tiny").encode("a"),
      byte_level().encode("a"));
}

TEST(Tokenizer, CountsWhatATextHasOfWhatIsAddedBeforeIt) {
  const std::string json = replaced(
      tiny_sentencepiece_json(), "\"post_processor\":null",
      R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>",)"
      R"("type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"</s>",)"
      R"("type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]},)"
      R"("</s>":{"id":"</s>","ids":[2],"tokens":["</s>"]}}})");
  const Tokenizer adds = Tokenizer::parse(json, "tiny");
  EXPECT_EQ(adds.num_doubled_at_start("<s>the inn"), 1u);
  EXPECT_EQ(adds.encode("<s>the inn", true)[1], 1) << "the library's ids stay as they are";
  for (const char* text : {"", "the inn", " <s>the inn", "<s", "</s>the inn"})
    EXPECT_EQ(adds.num_doubled_at_start(text), 0u) << text;
  EXPECT_EQ(sentencepiece().num_doubled_at_start("<s>the inn"), 0u) << "it adds nothing";
}

}  // namespace
}  // namespace strata::text
