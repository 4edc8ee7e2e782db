// SPDX-License-Identifier: Apache-2.0
#include "report/text_width.h"

#include <utf8proc.h>

#include <algorithm>

namespace strata::report {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct CodePoint {
  int32_t value;  // negative: invalid
  size_t size;    // bytes, >= 1
};

CodePoint code_point_at(std::string_view text, size_t offset) {
  utf8proc_int32_t value = -1;
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + offset);
  const utf8proc_ssize_t size =
      utf8proc_iterate(data, static_cast<utf8proc_ssize_t>(text.size() - offset), &value);
  return size > 0 ? CodePoint{value, static_cast<size_t>(size)} : CodePoint{-1, 1};
}

int columns_of(const CodePoint& point) {
  return point.value < 0 ? 1 : std::max(0, utf8proc_charwidth(point.value));
}

bool is_control(int32_t value) {
  const utf8proc_category_t category = utf8proc_category(value);
  // Cf holds the direction overrides, Zl and Zp break lines; joiners inside emoji stay.
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP ||
         (category == UTF8PROC_CATEGORY_CF && value != 0x200C && value != 0x200D);
}

// Bytes that are no UTF-8, and of what a terminal obeys all but `kept`.
std::string replace_unprintable(std::string_view text, std::string_view kept) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    const bool is_kept = kept.find(text[i]) != std::string_view::npos;
    if (point.value < 0 || (is_control(point.value) && !is_kept)) {
      out.append(kReplacement);
    } else {
      out.append(text.substr(i, point.size));
    }
    i += point.size;
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return replace_unprintable(text, ""); }
std::string printable_lines(std::string_view text) { return replace_unprintable(text, "\n\t"); }

std::string markup_escaped(std::string_view printable) {
  std::string out;
  for (const char c : printable) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

int text_width(std::string_view text) {
  int width = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    width += columns_of(point);
    i += point.size;
  }
  return width;
}

std::string truncate_to_width(std::string_view text, int columns) {
  if (text_width(text) <= columns) return std::string(text);
  if (columns <= 0) return "";
  int width = 0;
  size_t end = 0;
  while (end < text.size()) {
    const CodePoint point = code_point_at(text, end);
    const int step = columns_of(point);
    if (width + step > columns - 1) break;
    width += step;
    end += point.size;
  }
  return std::string(text.substr(0, end)) + "~";
}

}  // namespace strata::report
