// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/stability_record.h"

#include <cstring>

#include "base/ascii.h"
#include "server/tinker/protocol/tensor.h"

namespace strata::server {
namespace {

template <typename T>
std::vector<T> values_of(std::string_view bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Takes a number of at most nine digits and the space behind it off `text`; false: there is none.
bool take_size(std::string_view& text, size_t& size) {
  size_t digits = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9' && digits < 9;
       ++digits) {
    size = size * 10 + static_cast<size_t>(text[digits] - '0');
  }
  if (digits == 0 || digits >= text.size() || text[digits] != ' ') return false;
  text.remove_prefix(digits + 1);
  return true;
}

std::string decode_hex(std::string_view text) {
  std::string bytes(text.size() / 2, 0);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(hex_value(text[2 * i]) * 16 + hex_value(text[2 * i + 1]));
  }
  return bytes;
}

}  // namespace

std::string pack_tokens(const std::vector<int32_t>& tokens) { return packed(tokens); }

std::string pack_sequence(const std::vector<int32_t>& tokens, const std::vector<float>& logprobs) {
  return packed(tokens) + packed(logprobs);
}

std::optional<SampleRecord> unpack_sequence(std::string_view prompt, std::string_view sequence) {
  if (prompt.size() % 4 != 0 || sequence.size() % 8 != 0) return std::nullopt;
  SampleRecord record;
  record.prompt = values_of<int32_t>(prompt);
  record.tokens = values_of<int32_t>(sequence.substr(0, sequence.size() / 2));
  record.logprobs = values_of<float>(sequence.substr(sequence.size() / 2));
  return record;
}

std::optional<SampleRecord> unpack_record(std::string_view text) {
  size_t prompt = 0, tokens = 0;
  if (!take_size(text, prompt) || !take_size(text, tokens)) return std::nullopt;
  if (text.size() != (prompt + 2 * tokens) * 8) return std::nullopt;
  if (text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  const std::string bytes = decode_hex(text);
  const std::string_view all = bytes;
  return unpack_sequence(all.substr(0, prompt * 4), all.substr(prompt * 4));
}

}  // namespace strata::server
