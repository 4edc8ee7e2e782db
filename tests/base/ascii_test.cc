// SPDX-License-Identifier: Apache-2.0
#include "base/ascii.h"

#include <gtest/gtest.h>

#include <array>

namespace strata {
namespace {

TEST(Ascii, LowerLeavesAllButCapitals) {
  EXPECT_EQ(lower("Content-TYPE @[`{ \xc3\x84"), "content-type @[`{ \xc3\x84");
}

TEST(Ascii, HexValueIsOfDigitsAlone) {
  for (int c = 0; c < 256; ++c) {
    const auto at = std::string_view("0123456789abcdef").find(lower(std::string(1, char(c))));
    const int want = at == std::string_view::npos ? -1 : static_cast<int>(at);
    EXPECT_EQ(hex_value(static_cast<char>(c)), want) << c;
  }
}

TEST(Ascii, AWholeNumberIsDigitsAlone) {
  EXPECT_EQ(parse_whole_number("0"), 0);
  EXPECT_EQ(parse_whole_number("007"), 7);
  EXPECT_EQ(parse_whole_number("9223372036854775807"), INT64_MAX);
  for (const char* text : {"", "9223372036854775808", "-1", "-0", "+1", " 1", "1 ", "1.0", "0x1"}) {
    EXPECT_EQ(parse_whole_number(text), std::nullopt) << text;
  }
}

TEST(Ascii, TrimmedHasNoBlanksAtItsEnds) {
  EXPECT_EQ(trimmed(" \t a b\r\n"), "a b");
  EXPECT_EQ(trimmed("  "), "");
  EXPECT_EQ(trimmed(""), "");
  EXPECT_EQ(trimmed("\"a\"", "\""), "a");
}

TEST(Ascii, PlainIsWithoutWhatIsNotNamed) {
  EXPECT_TRUE(is_plain("AZaz09._-"));
  EXPECT_TRUE(is_plain(""));
  EXPECT_FALSE(is_plain("a/b"));
  EXPECT_TRUE(is_plain("a/b:c", "/:"));
  for (const char* text : {"a b", "a\n", "\xc3\xa4", "a@b", "a[b"})
    EXPECT_FALSE(is_plain(text)) << text;
}

TEST(OneWord, NeitherSplitsNorForgesALine) {
  EXPECT_EQ(percent_escaped("/api/v1/get_info"), "/api/v1/get_info");
  EXPECT_EQ(percent_escaped("/a b\n\xC2\x85%"), "/a%20b%0A%C2%85%25");
}

}  // namespace
}  // namespace strata
