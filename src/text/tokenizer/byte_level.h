// SPDX-License-Identifier: Apache-2.0
// GPT-2's mapping between bytes and printable characters, which byte-level vocabularies use.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace strata::text {

// The character that stands for `byte`.
uint32_t byte_level_character(uint8_t byte);
// The bytes that `token` stands for; nothing when one of its characters stands for none.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace strata::text
