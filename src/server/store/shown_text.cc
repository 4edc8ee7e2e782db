// SPDX-License-Identifier: Apache-2.0
#include "server/store/shown_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "text/unicode/unicode.h"

namespace strata::server {
namespace {

bool is_control(uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7f && code_point < 0xa0);
}

// A relative one is a word like others, unless a path goes on behind it and begins with it.
bool names_folder(std::string_view message, const std::string& folder) {
  if (folder.empty()) return false;
  if (folder.front() == '/') return message.find(folder) != std::string_view::npos;
  const auto ends_path = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '/' && c != '_' && c != '-';
  };
  for (size_t at = message.find(folder + "/"); at != std::string_view::npos;
       at = message.find(folder + "/", at + 1)) {
    if (at == 0 || ends_path(message[at - 1])) return true;
  }
  return false;
}

}  // namespace

bool names_folder(std::string_view message, std::span<const std::string> folders) {
  return std::ranges::any_of(
      folders, [&](const std::string& folder) { return names_folder(message, folder); });
}

std::string shown_text(std::string_view text, size_t most) {
  std::string out;
  size_t at = 0;
  while (at < std::min(most, text.size())) {
    const text::Utf8Step step = text::decode_utf8_at(text, at);
    const std::string_view bytes = text.substr(at, static_cast<size_t>(step.num_bytes));
    at += bytes.size();
    if (step.valid && !is_control(step.code_point)) {
      out += bytes;
      continue;
    }
    for (const char c : bytes) out += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
  }
  return at < text.size() ? out + "..." : out;
}

}  // namespace strata::server
