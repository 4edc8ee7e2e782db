// SPDX-License-Identifier: Apache-2.0
#include "text/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/rng.h"
#include "tests/base/temp_dir.h"

namespace strata::text {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

std::string raw_of(const std::string& text) {
  JsonReader json(text, "file");
  std::string raw = json.read_compact_json();
  json.end();
  return raw;
}

TEST(JsonReader, ReadsEveryKindOfValue) {
  const std::string text = R"( {"i": -12, "d": 2.5e1, "t": true, "f": false, "n": null,
    "s": "a\u00e9\ud83d\ude00\n\"\\\/", "list": [1, 2], "o": {} } )";
  JsonReader json(text, "file");
  std::string key;
  json.begin_object();
  ASSERT_TRUE(json.next_key(key));
  EXPECT_EQ(key, "i");
  EXPECT_EQ(json.read_integer(), -12);
  ASSERT_TRUE(json.next_key(key));
  EXPECT_EQ(json.read_number(), 25.0);
  ASSERT_TRUE(json.next_key(key));
  EXPECT_EQ(json.peek_kind(), JsonReader::Kind::kBool);
  EXPECT_TRUE(json.read_boolean());
  ASSERT_TRUE(json.next_key(key));
  EXPECT_FALSE(json.read_boolean());
  ASSERT_TRUE(json.next_key(key));
  json.read_null();
  ASSERT_TRUE(json.next_key(key));
  EXPECT_EQ(json.read_string(), "a\u00e9\U0001f600\n\"\\/");
  ASSERT_TRUE(json.next_key(key));
  json.begin_array();
  ASSERT_TRUE(json.next_item());
  EXPECT_EQ(json.read_integer(), 1);
  ASSERT_TRUE(json.next_item());
  EXPECT_EQ(json.read_integer(), 2);
  EXPECT_FALSE(json.next_item());
  ASSERT_TRUE(json.next_key(key));
  EXPECT_EQ(json.read_compact_json(), "{}");
  EXPECT_FALSE(json.next_key(key));
  json.end();
}

TEST(JsonReader, RawIsTheValueWithoutWhitespace) {
  EXPECT_EQ(raw_of(" { \"a b\" : [ 1 , 2.50 , null ] , \"c\" : \" x \" } "),
            "{\"a b\":[1,2.50,null],\"c\":\" x \"}");
}

struct BadCase {
  const char* name;
  std::string text;
  const char* message;
};
void PrintTo(const BadCase& bad, std::ostream* out) { *out << bad.name; }

class BadJson : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadJson, IsRefusedWithItsReason) {
  EXPECT_THAT(error_of([] { raw_of(GetParam().text); }), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadJson,
    ::testing::Values(
        BadCase{"nothing", "", "ends early"}, BadCase{"truncated_object", "{\"a\":1", "ends early"},
        BadCase{"truncated_string", "\"ab", "without its closing quote"},
        BadCase{"truncated_escape", "\"ab\\", "without its closing quote"},
        BadCase{"truncated_u", "\"\\u12", "four hexadecimal"},
        BadCase{"bad_hex", "\"\\u12g4\"", "four hexadecimal"},
        BadCase{"signed_hex", "\"\\u-123\"", "four hexadecimal"},
        BadCase{"unknown_escape", "\"\\x\"", "unknown escape"},
        BadCase{"control_character", "\"a\nb\"", "control character"},
        BadCase{"lone_high_surrogate", "\"\\ud800\"", "lone surrogate"},
        BadCase{"high_then_letter", "\"\\ud800\\u0041\"", "lone surrogate"},
        BadCase{"lone_low_surrogate", "\"\\udc00\"", "lone surrogate"},
        BadCase{"duplicate_key", "{\"a\":1,\"b\":2,\"a\":3}", "\"a\" appears twice"},
        BadCase{"duplicate_by_escape", "{\"a\":1,\"\\u0061\":3}", "appears twice"},
        BadCase{"deep", std::string(65, '[') + std::string(65, ']'), "deeper than 64"},
        BadCase{"very_deep", std::string(1'000'000, '['), "deeper than 64"},
        BadCase{"trailing_comma", "[1,]", "comma before"},
        BadCase{"trailing_comma_in_object", "{\"a\":1,}", "comma before"},
        BadCase{"missing_comma", "[1 2]", "wanted ','"},
        BadCase{"missing_colon", "{\"a\" 1}", "wanted ':'"},
        BadCase{"key_not_a_string", "{1:2}", "wanted '\"'"},
        BadCase{"more_text", "1 2", "after the end"}, BadCase{"leading_zero", "01", "leading zero"},
        BadCase{"plus", "+1", "no value starts"},
        BadCase{"point_without_digits", "1.", "wanted a number"},
        BadCase{"exponent_without_digits", "1e+", "wanted a number"},
        BadCase{"minus_alone", "-", "wanted a number"}, BadCase{"nan", "NaN", "no value starts"},
        BadCase{"infinity", "-Infinity", "wanted a number"}, BadCase{"word", "nul", "wanted null"},
        BadCase{"wrong_bracket", "[1}", "wanted ','"},
        BadCase{"comment", "/*x*/1", "no value starts"},
        BadCase{"bom", "\xef\xbb\xbf{}", "no value starts"},
        BadCase{"stray_continuation", "\"\x80\"", "not valid UTF-8"},
        BadCase{"overlong", "\"\xc0\xaf\"", "not valid UTF-8"},
        BadCase{"overlong_three", "\"\xe0\x80\xaf\"", "not valid UTF-8"},
        BadCase{"encoded_surrogate", "\"\xed\xa0\x80\"", "not valid UTF-8"},
        BadCase{"beyond_unicode", "\"\xf4\x90\x80\x80\"", "not valid UTF-8"},
        BadCase{"cut_sequence", "\"\xe2\x82", "not valid UTF-8"}),
    [](const auto& info) { return info.param.name; });

TEST(JsonReader, IntegersAreExactOrRefused) {
  const auto integer = [](const std::string& text) {
    return JsonReader(text, "file").read_integer();
  };
  EXPECT_EQ(integer("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(integer("-9223372036854775808"), INT64_MIN);
  for (const char* text : {"9223372036854775808", "1.0", "1e3", "18446744073709551617"}) {
    EXPECT_THAT(error_of([&] { integer(text); }), HasSubstr("an integer of 64 bits")) << text;
  }
  EXPECT_THAT(error_of([] { JsonReader("1e999", "file").read_number(); }),
              HasSubstr("does not fit"));
}

TEST(JsonQuote, RoundTrips) {
  std::string all;
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
  all += "\u00e9\U0001f600";
  EXPECT_EQ(JsonReader(json_quote(all), "file").read_string(), all);
  EXPECT_EQ(boost::json::parse(json_quote(all)).as_string(), boost::json::string(all));
}

TEST(JsonNumber, RoundTrips) {
  for (const double value : {0.0, 32.0, 0.1, -1.5e-300, 1e20, 123456789012345678.0}) {
    EXPECT_EQ(JsonReader(json_number(value), "file").read_number(), value);
    EXPECT_EQ(boost::json::parse(json_number(value)).to_number<double>(), value);
  }
  EXPECT_EQ(json_number(32), "32");
}

bool boost_accepts(const std::string& text) {
  boost::system::error_code fault;
  boost::json::parse(text, fault);
  return !fault;
}

// Damaged texts are accepted by both readers or by neither; only duplicate keys are ours alone to
// refuse.
TEST(JsonReader, AgreesWithBoostOnDamagedTexts) {
  const std::string seed =
      R"({"w":{"dtype":"F32","shape":[2,-3.5e+1],"o":[0,24]},"\u00e9\ud83d\ude00":[true,false,null,{}],"":"x"})";
  constexpr std::string_view kBytes = "{}[]\",:\\u0e-+.19tfn \n\xc3\xa9\x80/";
  int accepted = 0;
  for (uint64_t round = 0; round < 25'000; ++round) {
    const Counter random{1, round};
    std::string text = seed;
    const auto words = random.words(0);
    for (uint64_t edit = 0; edit <= words[0] % 3; ++edit) {
      const auto draw = random.words(1 + edit);
      const size_t at = draw[0] % text.size();
      const char byte = kBytes[draw[1] % kBytes.size()];
      if (draw[2] % 3 == 0) {
        text[at] = byte;
      } else if (draw[2] % 3 == 1) {
        text.insert(at, 1, byte);
      } else {
        text.erase(at, 1);
      }
    }
    const std::string fault = error_of([&] { raw_of(text); });
    if (fault.find("appears twice") != std::string::npos) continue;
    ASSERT_EQ(fault.empty(), boost_accepts(text)) << text << "\n" << fault;
    if (!fault.empty()) continue;
    ++accepted;
    ASSERT_EQ(boost::json::parse(raw_of(text)), boost::json::parse(text)) << text;
  }
  EXPECT_GT(accepted, 1'000);  // the comparison is not all about refusals
}

}  // namespace
}  // namespace strata::text
