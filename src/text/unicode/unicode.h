// SPDX-License-Identifier: Apache-2.0
// UTF-8 and sets of code points. Functions that read UTF-8 by position trust it: text that comes
// from outside passes sanitize_utf8 first. Any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode/unicode_tables.h"

namespace strata::text {

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// One step of decoding bytes that may be wrong. A bad part is as long as the longest prefix of a
// valid sequence, at least one byte: what Python's errors="replace" and Rust's from_utf8_lossy
// replace by one U+FFFD.
struct Utf8Step {
  uint32_t code_point = 0;
  int num_bytes = 0;
  bool valid = false;
  bool truncated = false;  // bad only because the text ends here
};
Utf8Step decode_utf8_at(std::string_view text, size_t pos);

bool is_valid_utf8(std::string_view text);
// The text with each bad part replaced by U+FFFD.
std::string sanitize_utf8(std::string_view text);

// The code point at `pos` of valid UTF-8; advances `pos` past it.
inline uint32_t next_code_point(std::string_view text, size_t& pos) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t lead = byte(pos);
  if (lead < 0x80) return pos += 1, lead;
  if (lead < 0xE0) {
    pos += 2;
    return (lead & 0x1F) << 6 | (byte(pos - 1) & 0x3F);
  }
  if (lead < 0xF0) {
    pos += 3;
    return (lead & 0x0F) << 12 | (byte(pos - 2) & 0x3F) << 6 | (byte(pos - 1) & 0x3F);
  }
  pos += 4;
  return (lead & 0x07) << 18 | (byte(pos - 3) & 0x3F) << 12 | (byte(pos - 2) & 0x3F) << 6 |
         (byte(pos - 1) & 0x3F);
}

// The start of the code point that ends at `pos` > 0 of valid UTF-8.
inline size_t previous_start(std::string_view text, size_t pos) {
  do --pos;
  while (pos > 0 && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80);
  return pos;
}

void append_utf8(std::string& out, uint32_t code_point);
int64_t count_code_points(std::string_view valid_utf8);

// Sorted, disjoint, not touching.
using Ranges = std::vector<CodePointRange>;
Ranges canonical_ranges(Ranges ranges);
Ranges unite(const Ranges& a, const Ranges& b);
Ranges intersect(const Ranges& a, const Ranges& b);
Ranges complement(const Ranges& ranges);
// A general category ("L", "Lu"), a script or "Alphabetic"; empty when the name is not known.
Ranges property_ranges(std::string_view name);
// White_Space.
Ranges space_ranges();
// Alphabetic, marks, decimal digits and connectors: \w.
Ranges word_ranges();

// Membership in a few loads, whatever the set.
class CodePointSet {
 public:
  CodePointSet() = default;
  explicit CodePointSet(const Ranges& ranges);
  // Made of no ranges: contains() must not be asked.
  [[nodiscard]] bool is_none() const { return index_.empty(); }
  [[nodiscard]] int64_t num_bytes() const {
    return static_cast<int64_t>(index_.size() * sizeof(uint16_t) +
                                blocks_.size() * sizeof(uint64_t));
  }
  [[nodiscard]] bool contains(uint32_t c) const {
    return c <= kMaxCodePoint && (blocks_[index_[c >> 8] * 4 + (c >> 6 & 3)] >> (c & 63) & 1) != 0;
  }

 private:
  std::vector<uint16_t> index_;   // [0x1100] block of each 256 code points
  std::vector<uint64_t> blocks_;  // 4 words a block
};

}  // namespace strata::text
