// SPDX-License-Identifier: Apache-2.0
// What requests, keys and options are written in, where it is ASCII.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

inline std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// The value of a digit in hexadecimal; -1: it is none.
inline int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char letter = static_cast<char>(c | 0x20);
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

// What the character counts as in numbers of base 11 to 36; 36 of what is no digit in any.
inline int digit_value(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'z' ? c - 'a' + 10
         : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                : 36;
}

// The number that a text of digits alone is; nothing for any other text.
inline std::optional<int64_t> parse_whole_number(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), end, value);
  if (fault != std::errc{} || rest != end || text.starts_with('-')) return std::nullopt;
  return value;
}

inline std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\r\n") {
  text = text.substr(0, text.find_last_not_of(blanks) + 1);
  return text.empty() ? text : text.substr(text.find_first_not_of(blanks));
}

// The parts of a list with commas that are not empty.
inline std::vector<std::string> split_commas(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Whether it is letters, digits, '.', '_', '-' and characters of `more` alone.
inline bool is_plain(std::string_view text, std::string_view more = "") {
  const std::string plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return text.find_first_not_of(plain + std::string(more)) == std::string_view::npos;
}

// A path as one word of a log's line: what is no visible ASCII, and %, as %XX.
std::string percent_escaped(std::string_view path);

// In single quotes, as one word of a shell.
std::string shell_quoted(const std::string& text);
// A plain path as it stands, any other text in quotes: one word of a shell either way.
std::string shell_word(const std::string& text);

}  // namespace strata
