// SPDX-License-Identifier: Apache-2.0
#include "server/store/shown_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST(NamesFolder, AFileInOneIsNamedAndAWordIsNot) {
  const std::vector<std::string> folders = {"", "state", "/srv/models/qwen", "/tmp"};
  for (const char* told : {"state/tmp/x: no space", "open 'state/x'", "in /srv/models/qwen: gone",
                           "/srv/models/qwen/config.json: cut", "/tmp/strata-offload: full"}) {
    EXPECT_TRUE(names_folder(told, folders)) << told;
  }
  for (const char* told : {"the state of the model", "load_state: no such file", "restate/x",
                           "/home/state/x", "tinker://s:train:0/weights/a", "/srv/models/other"}) {
    EXPECT_FALSE(names_folder(told, folders)) << told;
  }
}

}  // namespace
}  // namespace strata::server
