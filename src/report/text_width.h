// SPDX-License-Identifier: Apache-2.0
// Columns that UTF-8 text takes on a terminal, by Unicode's character widths: combining marks 0,
// CJK 2. Control characters and bad bytes are made harmless first, so a hostile file name cannot
// move the cursor.
#pragma once
#include <string>
#include <string_view>

namespace strata::report {

// The text with control characters and invalid UTF-8 replaced by U+FFFD; always valid UTF-8, one
// line.
std::string printable(std::string_view text);
// Several lines made printable: line ends and tabs stay.
std::string printable_lines(std::string_view text);

// Printable text as a part of HTML or SVG: what would begin markup is escaped.
std::string markup_escaped(std::string_view printable);

// Columns of printable text.
int text_width(std::string_view text);

// The longest start of the text that fits in `columns`; the last column becomes "~" when text is
// cut.
std::string truncate_to_width(std::string_view text, int columns);

}  // namespace strata::report
