// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/byte_level.h"

#include <array>

#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

constexpr uint32_t kFirstReplaced = 0x100;

// Printable Latin-1 stands for itself; the other 68 bytes follow each other from U+0100.
constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Mapping {
  std::array<uint32_t, 256> character{};
  std::array<int16_t, 512> byte{};
};

constexpr Mapping make_mapping() {
  Mapping mapping;
  for (int16_t& byte : mapping.byte) byte = -1;
  uint32_t next = kFirstReplaced;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t character = stands_for_itself(byte) ? byte : next++;
    mapping.character[byte] = character;
    mapping.byte[character] = static_cast<int16_t>(byte);
  }
  return mapping;
}

constexpr Mapping kMapping = make_mapping();

}  // namespace

uint32_t byte_level_character(uint8_t byte) { return kMapping.character[byte]; }

std::optional<std::string> byte_level_bytes(std::string_view token) {
  std::string out;
  for (size_t pos = 0; pos < token.size();) {
    const uint32_t c = next_code_point(token, pos);
    if (c >= kMapping.byte.size() || kMapping.byte[c] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kMapping.byte[c]));
  }
  return out;
}

}  // namespace strata::text
