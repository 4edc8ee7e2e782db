// SPDX-License-Identifier: Apache-2.0
// WordWrap: text on its way to a terminal, in pieces, with line ends where a word would pass the
// right edge. A word is held until it is whole; wide characters (CJK) are words of their own.
//   WordWrap wrap(terminal_columns(stdout));  print(wrap.push(piece));  ...  print(wrap.flush());
#pragma once
#include <cstdio>
#include <string>
#include <string_view>

namespace strata::report {

// The width of the terminal behind a stream; 0 where it is none or does not say.
int terminal_columns(std::FILE* out);

class WordWrap {
 public:
  // 0 columns: there is no edge, and nothing is held. The text begins at the left edge.
  explicit WordWrap(int columns) : columns_(columns) {}

  // What may be printed now. Pieces are whole characters.
  std::string push(std::string_view piece);
  // What was held.
  std::string flush();

 private:
  void push_character(std::string_view character, std::string& out);
  void end_word(std::string& out);

  int columns_;
  int column_ = 0;
  std::string blanks_, word_;  // behind what was given out
};

}  // namespace strata::report
