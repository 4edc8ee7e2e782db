// SPDX-License-Identifier: Apache-2.0
#include "text/unicode/unicode.h"

#include <algorithm>
#include <map>
#include <span>

#include "base/check.h"

namespace strata::text {

namespace {

// Bytes of the sequence that begins with `lead`, which is beyond ASCII; 0 where none does.
int sequence_size(uint8_t lead) {
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  return lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
}

// Whether a sequence may have `byte` as its i-th: the second one rules out overlong forms,
// surrogates and what is above U+10FFFF.
bool continues_sequence(uint8_t lead, int i, uint8_t byte) {
  const uint8_t low = i > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = i > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return byte >= low && byte <= high;
}

}  // namespace

Utf8Step decode_utf8_at(std::string_view text, size_t pos) {
  const auto lead = static_cast<uint8_t>(text[pos]);
  if (lead < 0x80) return {lead, 1, true, false};
  const int wanted = sequence_size(lead);
  if (wanted == 0) return {0, 1, false, false};
  uint32_t code_point = lead & (0x7Fu >> wanted);
  for (int i = 1; i < wanted; ++i) {
    if (pos + static_cast<size_t>(i) >= text.size()) return {0, i, false, true};
    const auto byte = static_cast<uint8_t>(text[pos + static_cast<size_t>(i)]);
    if (!continues_sequence(lead, i, byte)) return {0, i, false, false};
    code_point = code_point << 6 | (byte & 0x3Fu);
  }
  return {code_point, wanted, true, false};
}

bool is_valid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    if (static_cast<uint8_t>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const Utf8Step step = decode_utf8_at(text, pos);
    if (!step.valid) return false;
    pos += static_cast<size_t>(step.num_bytes);
  }
  return true;
}

std::string sanitize_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = decode_utf8_at(text, pos);
    const auto size = static_cast<size_t>(step.num_bytes);
    out += step.valid ? text.substr(pos, size) : kReplacement;
    pos += size;
  }
  return out;
}

void append_utf8(std::string& out, uint32_t c) {
  CHECK(c <= kMaxCodePoint && (c < 0xD800 || c > 0xDFFF), c);
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  if (c < 0x10000) return put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F));
  put(0x80 | (c & 0x3F));
}

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

Ranges canonical_ranges(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end(), [](auto a, auto b) { return a.first < b.first; });
  Ranges out;
  for (const CodePointRange range : ranges) {
    if (!out.empty() && range.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

Ranges unite(const Ranges& a, const Ranges& b) {
  Ranges all = a;
  all.insert(all.end(), b.begin(), b.end());
  return canonical_ranges(std::move(all));
}

Ranges complement(const Ranges& ranges) {
  Ranges out;
  uint32_t next = 0;
  for (const CodePointRange range : ranges) {
    if (range.first > next) out.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) out.push_back({next, kMaxCodePoint});
  return out;
}

Ranges intersect(const Ranges& a, const Ranges& b) {
  return complement(unite(complement(a), complement(b)));
}

static Ranges category_ranges(std::string_view name) {
  Ranges out;
  const auto runs = category_runs();
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string_view category = kCategoryNames[runs[i].category];
    if (name.empty() || !category.starts_with(name)) continue;
    out.push_back({runs[i].first, i + 1 < runs.size() ? runs[i + 1].first - 1 : kMaxCodePoint});
  }
  return canonical_ranges(std::move(out));
}

Ranges property_ranges(std::string_view name) {
  for (const NamedRanges& named : named_ranges()) {
    if (named.name == name) return {named.ranges.begin(), named.ranges.end()};
  }
  return category_ranges(name);
}

Ranges space_ranges() {
  return {{0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
          {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
}

Ranges word_ranges() {
  Ranges out = property_ranges("Alphabetic");
  for (const char* name : {"M", "Nd", "Pc"}) out = unite(out, property_ranges(name));
  return out;
}

namespace {

// The bits of a block of 256 code points; `ranges` are those from the first that reaches it on.
std::array<uint64_t, 4> block_words(std::span<const CodePointRange> ranges, uint32_t block) {
  std::array<uint64_t, 4> words{};
  const uint32_t end = block * 256 + 255;
  for (const CodePointRange range : ranges) {
    if (range.first > end) break;
    const uint32_t first = std::max(range.first, block * 256) & 255;
    const uint32_t last = std::min(range.last, end) & 255;
    for (uint32_t w = first >> 6; w <= last >> 6; ++w) {
      const uint64_t from_first = w == first >> 6 ? ~uint64_t{0} << (first & 63) : ~uint64_t{0};
      const uint64_t to_last = w == last >> 6 ? ~uint64_t{0} >> (63 - (last & 63)) : ~uint64_t{0};
      words[w] |= from_first & to_last;
    }
  }
  return words;
}

}  // namespace

CodePointSet::CodePointSet(const Ranges& ranges) : index_(0x1100) {
  std::map<std::array<uint64_t, 4>, uint16_t> known;
  auto range = ranges.begin();
  for (uint32_t block = 0; block < 0x1100; ++block) {
    while (range != ranges.end() && range->last < block * 256) ++range;
    const std::array<uint64_t, 4> words = block_words({range, ranges.end()}, block);
    const auto [found, added] = known.try_emplace(words, static_cast<uint16_t>(known.size()));
    if (added) blocks_.insert(blocks_.end(), words.begin(), words.end());
    index_[block] = found->second;
  }
}

}  // namespace strata::text
