// SPDX-License-Identifier: Apache-2.0
#include "report/word_wrap.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace strata::report {
namespace {

std::string wrapped(int columns, std::initializer_list<std::string_view> pieces) {
  WordWrap wrap(columns);
  std::string out;
  for (const std::string_view piece : pieces) out += wrap.push(piece);
  return out + wrap.flush();
}

TEST(WordWrap, BreaksBetweenWords) {
  EXPECT_EQ(wrapped(10, {"a horse named Bo"}), "a horse\nnamed Bo");
  EXPECT_EQ(wrapped(10, {"a hor", "se n", "amed", " Bo"}), "a horse\nnamed Bo");
  EXPECT_EQ(wrapped(10, {"0123456789 ab"}), "0123456789\nab");  // a full line, then no blank
  EXPECT_EQ(wrapped(10, {"01234 6789"}), "01234 6789");
}

TEST(WordWrap, WithoutAnEdgeNothingIsHeldOrChanged) {
  WordWrap wrap(0);
  EXPECT_EQ(wrap.push("a horse n"), "a horse n");
  EXPECT_EQ(wrap.push("amed  \n"), "amed  \n");
  EXPECT_EQ(wrap.flush(), "");
}

TEST(WordWrap, AWordIsHeldUntilItIsWhole) {
  WordWrap wrap(10);
  EXPECT_EQ(wrap.push("one tw"), "one");
  EXPECT_EQ(wrap.push("o\n"), " two\n");
  EXPECT_EQ(wrap.push("three"), "");
  EXPECT_EQ(wrap.flush(), "three");
}

TEST(WordWrap, LinesOfTheTextAndTheirIndentStay) {
  EXPECT_EQ(wrapped(10, {"if x:\n    return 1\n\nend"}), "if x:\n    return\n1\n\nend");
  EXPECT_EQ(wrapped(12, {"a\tbcde fg"}), "a\tbcde\nfg");  // the tab ends in column 8
}

TEST(WordWrap, LongWordsAndWideCharacters) {
  EXPECT_EQ(wrapped(10, {"see 0123456789abcdef gh ijkl"}), "see\n0123456789abcdef gh\nijkl");
  EXPECT_EQ(wrapped(6, {"\u6771\u4eac\u90fd\u5e81"}), "\u6771\u4eac\u90fd\n\u5e81");
  EXPECT_EQ(wrapped(6, {"\u00e4\u00f6\u00fc \u00e4\u00f6\u00fc"}),
            "\u00e4\u00f6\u00fc\n\u00e4\u00f6\u00fc");
}

}  // namespace
}  // namespace strata::report
