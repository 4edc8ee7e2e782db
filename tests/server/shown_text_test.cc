// SPDX-License-Identifier: Apache-2.0
#include "server/shown_text.h"

#include <gtest/gtest.h>

namespace strata::server {
namespace {

using namespace std::string_view_literals;

TEST(ShownText, WhatIsAlreadyTextStaysAsItIs) {
  EXPECT_EQ(shown_text("a b-\xc3\xa9\xf0\x9f\x98\x80", 100), "a b-\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(shown_text("", 100), "");
}

TEST(ShownText, ControlCharactersAndBadBytesAreEscaped) {
  EXPECT_EQ(shown_text("\0x\n\x7f"sv, 100), "\\x00x\\x0A\\x7F");
  EXPECT_EQ(shown_text("\xff\xc3", 100), "\\xFF\\xC3");
  EXPECT_EQ(shown_text("\xc2\x85", 100), "\\xC2\\x85");  // U+0085
}

TEST(ShownText, IsCutBetweenCharacters) {
  EXPECT_EQ(shown_text("abcd", 4), "abcd");
  EXPECT_EQ(shown_text("abcde", 4), "abcd...");
  EXPECT_EQ(shown_text("abc\xc3\xa9z", 4), "abc\xc3\xa9...");
}

}  // namespace
}  // namespace strata::server
