// SPDX-License-Identifier: Apache-2.0
#include "report/table.h"

#include <gtest/gtest.h>

#include "report/text_width.h"

namespace strata::report {
namespace {

TEST(TextWidth, CountsColumnsNotBytes) {
  EXPECT_EQ(text_width("abc"), 3);
  EXPECT_EQ(text_width("e\xCC\x81"), 1);                 // e + combining acute
  EXPECT_EQ(text_width("\xE6\x97\xA5\xE6\x9C\xAC"), 4);  // two CJK characters
}

TEST(TextWidth, HostileBytesBecomeHarmless) {
  EXPECT_EQ(printable("a\x1b[2Jb"), "a\xEF\xBF\xBD[2Jb");
  EXPECT_EQ(printable("a\nb"),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(printable("\xff"), "\xEF\xBF\xBD");
  EXPECT_EQ(printable("\xE2\x80\xAE"), "\xEF\xBF\xBD");  // right-to-left override
  EXPECT_EQ(printable("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
}

TEST(TextWidth, FitsAtCharacterBoundaries) {
  EXPECT_EQ(truncate_to_width("abcdef", 6), "abcdef");
  EXPECT_EQ(truncate_to_width("abcdef", 4), "abc~");
  EXPECT_EQ(truncate_to_width("\xE6\x97\xA5\xE6\x9C\xAC", 3), "\xE6\x97\xA5~");
  EXPECT_EQ(truncate_to_width("\xE6\x97\xA5\xE6\x9C\xAC", 2), "~");
  EXPECT_EQ(truncate_to_width("abc", 0), "");
}

TEST(Table, AlignsByColumns) {
  Table table({{"what"}, {"n", Align::kRight}});
  table.add_row({"\xE6\x97\xA5\xE6\x9C\xAC!", "7"});
  table.add_row({"plain", "1234"});
  EXPECT_EQ(table.text(),
            "what      n\n"
            "-----  ----\n"
            "\xE6\x97\xA5\xE6\x9C\xAC!     7\n"
            "plain  1234\n");
}

TEST(Table, NoHeaderNoRuleNoTrailingBlanks) {
  Table table({{""}, {""}});
  table.add_row({"key", "value"});
  table.add_row({"long key", ""});
  EXPECT_EQ(table.text(), "key       value\nlong key\n");
}

TEST(TableDeathTest, ARowHasOneCellAColumn) {
  Table table({{"a"}, {"b"}});
  EXPECT_DEATH(table.add_row({"1"}), "cells.size");
}

}  // namespace
}  // namespace strata::report
