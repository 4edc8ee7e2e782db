// SPDX-License-Identifier: Apache-2.0
#include "text/unicode/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>

#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

// Hangul syllables are composed by arithmetic: The Unicode Standard, section 3.12.
constexpr uint32_t kS = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7;
constexpr uint32_t kNumL = 19, kNumV = 21, kNumT = 28;

struct Mark {
  uint32_t code_point;
  int combining_class;
};

class Tables {
 public:
  Tables() : marks_(property_ranges("NfcMark")), decomposable_(property_ranges("NfcDecomposable")) {
    // A pair's first part may itself be a pair that comes later: two more rounds find them all.
    for (int round = 0; round < 3; ++round) collect_pairs();
    Ranges seconds = {{kV, kV + kNumV - 1}, {kT, kT + kNumT - 1}};
    for (const auto& [pair, composed] : composed_) {
      const auto second = static_cast<uint32_t>(pair);
      seconds.push_back({second, second});
    }
    joins_left_ = CodePointSet(canonical_ranges(std::move(seconds)));
  }

  [[nodiscard]] int combining_class(uint32_t c) const {
    if (!marks_.contains(c)) return 0;
    return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
  }

  // Neither it nor what comes before it changes when it is appended to normalized text.
  [[nodiscard]] bool is_inert(uint32_t c) const {
    return !decomposable_.contains(c) && !marks_.contains(c) && !joins_left_.contains(c);
  }

  // The full canonical decomposition, with classes, appended.
  void append_decomposition(uint32_t c, std::vector<Mark>& out) const {
    if (!decomposable_.contains(c)) {
      out.push_back({c, combining_class(c)});
      return;
    }
    std::array<utf8proc_int32_t, 8> buffer{};
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer.data(),
                                               buffer.size(), UTF8PROC_DECOMPOSE, &boundary);
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      const auto part = static_cast<uint32_t>(buffer[static_cast<size_t>(i)]);
      out.push_back({part, combining_class(part)});
    }
  }

  // 0 where they are no parts of a Hangul syllable.
  static uint32_t compose_hangul(uint32_t a, uint32_t b) {
    if (a >= kL && a < kL + kNumL && b >= kV && b < kV + kNumV)
      return kS + ((a - kL) * kNumV + (b - kV)) * kNumT;
    if (a >= kS && a < kS + kNumL * kNumV * kNumT && (a - kS) % kNumT == 0 && b > kT &&
        b < kT + kNumT)
      return a + (b - kT);
    return 0;
  }

  // 0 when the two do not join.
  [[nodiscard]] uint32_t compose_pair(uint32_t a, uint32_t b) const {
    if (const uint32_t syllable = compose_hangul(a, b); syllable != 0) return syllable;
    const auto found = composed_.find(key(a, b));
    return found == composed_.end() ? 0 : found->second;
  }

 private:
  static uint64_t key(uint32_t a, uint32_t b) { return uint64_t{a} << 32 | b; }

  void collect_pairs() {
    for (const CodePointRange range : property_ranges("NfcComposite")) {
      for (uint32_t c = range.first; c <= range.last; ++c) {
        if (c >= kS && c < kS + kNumL * kNumV * kNumT) continue;
        const auto pair = decompose_once(c);
        if (pair[1] != 0) composed_[key(pair[0], pair[1])] = c;
      }
    }
  }

  // Full decomposition with everything but the last character composed; {0, 0} where it has none.
  [[nodiscard]] std::array<uint32_t, 2> decompose_once(uint32_t c) const {
    std::vector<Mark> parts;
    append_decomposition(c, parts);
    if (parts.size() < 2) return {0, 0};
    uint32_t head = parts[0].code_point;
    for (size_t i = 1; i + 1 < parts.size(); ++i) {
      const uint32_t joined = compose_pair(head, parts[i].code_point);
      if (joined == 0) return {0, 0};
      head = joined;
    }
    return {head, parts.back().code_point};
  }

  CodePointSet marks_;
  CodePointSet decomposable_;
  CodePointSet joins_left_;
  std::unordered_map<uint64_t, uint32_t> composed_;
};

const Tables& tables() {
  static const Tables kTables;
  return kTables;
}

// Equal classes in their order: by counting, since a hostile run may be long.
void sort_by_class(std::span<Mark> run, std::vector<Mark>& sorted) {
  std::array<size_t, 257> first{};
  for (const Mark mark : run) ++first[static_cast<size_t>(mark.combining_class) + 1];
  for (size_t c = 1; c < first.size(); ++c) first[c] += first[c - 1];
  sorted.assign(run.size(), {});
  for (const Mark mark : run) sorted[first[static_cast<size_t>(mark.combining_class)]++] = mark;
  std::copy(sorted.begin(), sorted.end(), run.begin());
}

// Sorts each run of marks of non-zero classes.
void reorder_canonically(std::vector<Mark>& parts) {
  std::vector<Mark> sorted;
  for (size_t i = 0; i < parts.size();) {
    size_t end = i;
    while (end < parts.size() && parts[end].combining_class != 0) ++end;
    if (end > i + 1) sort_by_class(std::span(parts).subspan(i, end - i), sorted);
    i = std::max(end, i + 1);
  }
}

void compose_canonically(std::vector<Mark>& parts) {
  size_t kept = 0;
  size_t starter = parts.size();
  int last_class = -1;
  for (const Mark part : std::vector<Mark>(parts)) {
    if (starter < kept && (last_class < part.combining_class || last_class == -1)) {
      const uint32_t joined = tables().compose_pair(parts[starter].code_point, part.code_point);
      if (joined != 0) {
        parts[starter].code_point = joined;
        continue;
      }
    }
    if (part.combining_class == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = part.combining_class;
    }
    parts[kept++] = part;
  }
  parts.resize(kept);
}

// The piece that begins at `begin`; where it ends. A piece goes from one starter that joins nothing
// before it to the next such starter.
size_t decompose_piece(std::string_view text, size_t begin, std::vector<Mark>& parts) {
  size_t end = begin;
  parts.clear();
  while (end < text.size()) {
    size_t next = end;
    const uint32_t c = next_code_point(text, next);
    if (end > begin && (c < 0x300 || tables().is_inert(c))) break;
    tables().append_decomposition(c, parts);
    end = next;
  }
  return end;
}

// `piece` in place of bytes [begin, end), which stay as they are where they are the same.
void append_piece(AlignedText& out, const AlignedText& in, size_t begin, size_t end,
                  const std::string& piece) {
  if (std::string_view(in.text).substr(begin, end - begin) == piece) {
    out.append(in, begin, end);
  } else {
    out.append_edit(in, begin, end, piece);
  }
}

}  // namespace

AlignedText normalize_nfc(AlignedText in) {
  // Below U+0300 nothing combines, and all that decomposes composes back.
  const auto simple = [](char c) { return static_cast<uint8_t>(c) < 0xCC; };
  if (std::all_of(in.text.begin(), in.text.end(), simple)) return in;
  AlignedText out = in.new_empty();
  std::vector<Mark> parts;
  std::string piece;
  for (size_t begin = 0; begin < in.text.size();) {
    const size_t end = decompose_piece(in.text, begin, parts);
    reorder_canonically(parts);
    compose_canonically(parts);
    piece.clear();
    for (const Mark part : parts) append_utf8(piece, part.code_point);
    append_piece(out, in, begin, end, piece);
    begin = end;
  }
  return out;
}

}  // namespace strata::text
