// SPDX-License-Identifier: Apache-2.0
#include "base/ascii.h"

#include <fmt/format.h>

namespace strata {

std::string percent_escaped(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (c > ' ' && c <= '~' && c != '%') {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string shell_word(const std::string& text) {
  return text.empty() || !is_plain(text, "/") ? shell_quoted(text) : text;
}

}  // namespace strata
