// SPDX-License-Identifier: Apache-2.0
#include "report/word_wrap.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <utility>

#include "report/text_width.h"

namespace strata::report {
namespace {

constexpr int kTab = 8;

// Bytes of the character that begins here, by its first byte.
size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte < 0xC0) return 1;
  return byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

int column_behind(int column, std::string_view blanks) {
  for (const char c : blanks) column = c == '\t' ? (column / kTab + 1) * kTab : column + 1;
  return column;
}

}  // namespace

int terminal_columns(std::FILE* out) {
  winsize size{};
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::string WordWrap::push(std::string_view piece) {
  if (columns_ <= 0) return std::string(piece);
  std::string out;
  for (size_t i = 0; i < piece.size();) {
    const size_t size = std::min(character_bytes(piece[i]), piece.size() - i);
    push_character(piece.substr(i, size), out);
    i += size;
  }
  return out;
}

void WordWrap::push_character(std::string_view character, std::string& out) {
  const char first = character.front();
  if (first == '\n') {
    end_word(out);
    out += '\n';
    blanks_.clear();
    column_ = 0;
  } else if (first == ' ' || first == '\t') {
    end_word(out);
    blanks_ += first;
  } else {
    const bool is_wide = text_width(character) > 1;
    if (is_wide) end_word(out);
    word_ += character;
    if (is_wide) end_word(out);
  }
}

void WordWrap::end_word(std::string& out) {
  if (word_.empty()) return;
  const int width = text_width(word_);
  int begin = column_behind(column_, blanks_);
  if (column_ > 0 && begin + width > columns_) {
    out += '\n';
    begin = 0;
  } else {
    out += blanks_;
  }
  out += word_;
  column_ = begin + width;
  if (column_ > columns_) column_ = (column_ - 1) % columns_ + 1;  // a word longer than a line
  blanks_.clear();
  word_.clear();
}

std::string WordWrap::flush() {
  std::string out;
  end_word(out);
  return out + std::exchange(blanks_, {});
}

}  // namespace strata::report
