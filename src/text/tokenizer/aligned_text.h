// SPDX-License-Identifier: Apache-2.0
// AlignedText: text that a normalizer may have changed, and for each byte boundary of it the byte
// of the original text it stands for. The map never runs backwards, so spans taken from it tile the
// original. Inserted text has the same original position at both its ends.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace strata::text {

struct AlignedText {
  std::string text;
  std::vector<size_t> map;  // [text.size() + 1] when tracked, else empty
  bool tracked = false;

  // Unchanged text that begins at byte `origin` of the original.
  static AlignedText from(std::string_view text, size_t origin, bool tracked) {
    AlignedText out;
    out.text = text;
    out.tracked = tracked;
    for (size_t i = 0; tracked && i <= text.size(); ++i) out.map.push_back(origin + i);
    return out;
  }

  // An empty text with the same tracking, to be filled by append.
  [[nodiscard]] AlignedText new_empty() const {
    AlignedText out;
    out.tracked = tracked;
    out.text.reserve(text.size() + text.size() / 8);
    if (tracked) out.map.push_back(map.front());
    return out;
  }

  // Bytes [begin, end) of `source`, as they are.
  void append(const AlignedText& source, size_t begin, size_t end) {
    text.append(source.text, begin, end - begin);
    if (tracked)
      map.insert(map.end(), source.map.begin() + static_cast<std::ptrdiff_t>(begin) + 1,
                 source.map.begin() + static_cast<std::ptrdiff_t>(end) + 1);
  }

  // `content` in place of bytes [begin, end) of `source`; begin == end inserts.
  void append_edit(const AlignedText& source, size_t begin, size_t end, std::string_view content) {
    text += content;
    if (!tracked) return;
    if (content.empty()) {
      map.back() = source.map[end];
      return;
    }
    map.insert(map.end(), content.size() - 1, source.map[begin]);
    map.push_back(source.map[end]);
  }
};

}  // namespace strata::text
