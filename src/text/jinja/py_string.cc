// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/py_string.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

constexpr uint32_t kSigma = 0x3A3, kFinalSigma = 0x3C2, kSharpS = 0xDF;

utf8proc_category_t category(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_cased(uint32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL ||
         kind == UTF8PROC_CATEGORY_LT;
}

bool is_letter(uint32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

// Capital sigma is final when a letter comes before it and none after.
uint32_t lower_at(std::string_view text, size_t begin, size_t end, uint32_t c) {
  if (c != kSigma) return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  size_t before = begin > 0 ? previous_start(text, begin) : 0;
  const bool after_letter = begin > 0 && is_cased(next_code_point(text, before));
  const bool letter_follows = end < text.size() && is_cased(next_code_point(text, end));
  return after_letter && !letter_follows ? kFinalSigma : kSigma + 0x20;
}

void append_upper(std::string& out, uint32_t c) {
  if (c == kSharpS) {
    out += "SS";
    return;
  }
  append_utf8(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_titlecase(std::string& out, uint32_t c) {
  if (c == kSharpS) {
    out += "Ss";
    return;
  }
  append_utf8(out, static_cast<uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

std::string reversed(std::string_view text) { return {text.rbegin(), text.rend()}; }

bool is_line_end(uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

// The first letter of each word in title case, the rest lower. A word is what is cased, or all.
std::string to_title_case(std::string_view text, bool is_one_word) {
  std::string out;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const uint32_t c = next_code_point(text, pos);
    if (in_word) {
      append_utf8(out, lower_at(text, begin, pos, c));
    } else {
      append_titlecase(out, c);
    }
    in_word = is_one_word || is_cased(c);
  }
  return out;
}

bool char_passes(CharTest test, uint32_t c) {
  const auto kind = category(c);
  const bool decimal = kind == UTF8PROC_CATEGORY_ND;
  const bool numeric = decimal || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
  switch (test) {
    case CharTest::kAlpha:
      return is_letter(c);
    case CharTest::kDigit:
      // Superscripts and circled digits are digits too, fractions and Roman numerals are not.
      return decimal || c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0x2070 && c <= 0x2089) ||
             (c >= 0x2460 && c <= 0x2468);
    case CharTest::kDecimal:
      return decimal;
    case CharTest::kNumeric:
      return numeric;
    case CharTest::kAlnum:
      return is_letter(c) || numeric;
    case CharTest::kSpace:
      return py_is_space(c);
    case CharTest::kLower:
      return kind != UTF8PROC_CATEGORY_LU && kind != UTF8PROC_CATEGORY_LT;
    case CharTest::kUpper:
      return kind != UTF8PROC_CATEGORY_LL && kind != UTF8PROC_CATEGORY_LT;
  }
  return false;
}

size_t end_of_first_word(std::string_view text) {
  size_t pos = 0;
  for (size_t next = pos; pos < text.size(); pos = next) {
    if (py_is_space(next_code_point(text, next))) break;
  }
  return pos;
}

size_t start_of_last_word(std::string_view text) {
  size_t pos = text.size();
  while (pos > 0) {
    const size_t start = previous_start(text, pos);
    size_t next = start;
    if (py_is_space(next_code_point(text, next))) break;
    pos = start;
  }
  return pos;
}

// What Python replaces where the old text is empty: before each character and at the end.
std::string insert_around_characters(std::string_view text, std::string_view with,
                                     int64_t max_count) {
  std::string out;
  size_t pos = 0;
  for (int64_t count = 0; max_count < 0 || count < max_count; ++count) {
    out += with;
    if (pos == text.size()) return out;
    const size_t begin = pos;
    next_code_point(text, pos);
    out += text.substr(begin, pos - begin);
  }
  return out.append(text.substr(pos));
}

std::vector<std::string> split_words(std::string_view text, int64_t max_splits, bool from_right) {
  std::vector<std::string> out;
  text = py_strip(text, {}, !from_right, from_right);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(out.size()) == max_splits) {
      out.emplace_back(text);
      break;
    }
    const size_t pos = from_right ? start_of_last_word(text) : end_of_first_word(text);
    out.emplace_back(from_right ? text.substr(pos) : text.substr(0, pos));
    text = from_right ? text.substr(0, pos) : text.substr(pos);
    text = py_strip(text, {}, !from_right, from_right);
  }
  return out;
}

}  // namespace

size_t find_text(std::string_view text, std::string_view wanted, size_t from) {
  const std::string_view rest = text.substr(from);
  if (wanted.empty()) return from;
  if (rest.empty()) return std::string_view::npos;  // memmem takes no null, also for no bytes
  const void* found = memmem(rest.data(), rest.size(), wanted.data(), wanted.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t rfind_text(std::string_view text, std::string_view wanted) {
  const size_t behind = find_text(reversed(text), reversed(wanted));
  return behind == std::string_view::npos ? behind : text.size() - behind - wanted.size();
}

int64_t count_text(std::string_view text, std::string_view wanted) {
  int64_t count = 0;
  for (size_t at = find_text(text, wanted); at != std::string_view::npos;
       at = find_text(text, wanted, at + wanted.size()))
    ++count;
  return count;
}

bool py_is_space(uint32_t c) {
  static const CodePointSet spaces(unite(space_ranges(), {{0x1C, 0x1F}}));
  return spaces.contains(c);
}

std::string_view py_strip(std::string_view text, std::string_view chars, bool left, bool right) {
  std::unordered_set<uint32_t> wanted;
  for (size_t pos = 0; pos < chars.size();) wanted.insert(next_code_point(chars, pos));
  const auto strips = [&](size_t pos) {
    const uint32_t c = next_code_point(text, pos);
    return chars.empty() ? py_is_space(c) : wanted.contains(c);
  };
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    next_code_point(text, next);
    if (!strips(begin)) break;
    begin = next;
  }
  while (right && end > begin) {
    const size_t start = previous_start(text, end);
    if (!strips(start)) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::string py_lower(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const uint32_t c = next_code_point(text, pos);
    append_utf8(out, lower_at(text, begin, pos, c));
    if (c == 0x130) append_utf8(out, 0x307);
  }
  return out;
}

std::string py_upper(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) append_upper(out, next_code_point(text, pos));
  return out;
}

std::string py_capitalize(std::string_view text) { return to_title_case(text, true); }

std::string py_title(std::string_view text) { return to_title_case(text, false); }

std::string jinja_title(std::string_view text) {
  std::string out;
  size_t word = 0;
  // jinja2 lowers the rest of a word without its first letter: a sigma sees no more than that.
  const auto finish = [&](size_t end) {
    if (word == end) return;
    append_upper(out, next_code_point(text, word));
    out += py_lower(text.substr(word, end - word));
  };
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const uint32_t c = next_code_point(text, pos);
    const bool separator =
        c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || py_is_space(c);
    if (!separator) continue;
    finish(begin);
    append_utf8(out, c);
    word = pos;
  }
  finish(text.size());
  return out;
}

std::vector<std::string> py_split(std::string_view text, std::string_view separator,
                                  int64_t max_splits, bool from_right) {
  std::vector<std::string> out;
  if (separator.empty()) {
    out = split_words(text, max_splits, from_right);
  } else if (from_right) {
    for (const auto& part : py_split(reversed(text), reversed(separator), max_splits, false))
      out.push_back(reversed(part));
  } else {
    while (max_splits < 0 || static_cast<int64_t>(out.size()) < max_splits) {
      const size_t at = find_text(text, separator);
      if (at == std::string_view::npos) break;
      out.emplace_back(text.substr(0, at));
      text = text.substr(at + separator.size());
    }
    out.emplace_back(text);
  }
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> py_splitlines(std::string_view text, bool keep_ends, int64_t max_splits) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size() && static_cast<int64_t>(out.size()) < max_splits;) {
    const size_t end = pos;
    const uint32_t c = next_code_point(text, pos);
    if (!is_line_end(c)) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    out.emplace_back(text.substr(begin, (keep_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) out.emplace_back(text.substr(begin));
  return out;
}

std::string py_replace(std::string_view text, std::string_view old, std::string_view with,
                       int64_t max_count) {
  if (old.empty()) return insert_around_characters(text, with, max_count);
  std::string out;
  size_t pos = 0;
  for (int64_t count = 0; max_count < 0 || count < max_count; ++count) {
    const size_t at = find_text(text, old, pos);
    if (at == std::string_view::npos) break;
    out += text.substr(pos, at - pos);
    out += with;
    pos = at + old.size();
  }
  return out.append(text.substr(pos));
}

SliceBounds py_slice_bounds(int64_t size, const int64_t* begin, const int64_t* end, int64_t step) {
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? size : size - 1;
  const auto clip = [&](const int64_t* bound, int64_t fallback) {
    if (bound == nullptr) return fallback;
    const int64_t value = *bound < 0 ? std::max(*bound, -size) + size : *bound;
    // A negative bound beyond the beginning means "before it", which a negative step can reach.
    if (*bound < -size) return low;
    return std::clamp(value, low, high);
  };
  const int64_t from = clip(begin, step > 0 ? 0 : size - 1);
  const int64_t to = clip(end, step > 0 ? size : -1);
  int64_t count = 0;
  if (step > 0 && from < to) count = (to - from - 1) / step + 1;
  if (step < 0 && from > to) count = (from - to - 1) / -step + 1;
  return {from, step, count};
}

size_t byte_of(std::string_view text, int64_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) next_code_point(text, pos);
  return pos;
}

std::string py_slice_text(std::string_view text, SliceBounds bounds) {
  if (bounds.count == 0) return {};
  if (bounds.step == 1) {
    const size_t begin = byte_of(text, bounds.begin);
    const std::string_view rest = text.substr(begin);
    return std::string(rest.substr(0, byte_of(rest, bounds.count)));
  }
  std::vector<size_t> starts;
  for (size_t pos = 0; pos < text.size(); next_code_point(text, pos)) starts.push_back(pos);
  starts.push_back(text.size());
  std::string out;
  for (int64_t i = 0; i < bounds.count; ++i) {
    const auto at = static_cast<size_t>(bounds.begin + i * bounds.step);
    out += text.substr(starts[at], starts[at + 1] - starts[at]);
  }
  return out;
}

bool py_is_all(std::string_view text, CharTest test) {
  bool any_cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const uint32_t c = next_code_point(text, pos);
    any_cased = any_cased || is_cased(c);
    if (!char_passes(test, c)) return false;
  }
  const bool of_case = test == CharTest::kLower || test == CharTest::kUpper;
  return of_case ? any_cased : !text.empty();
}

}  // namespace strata::text
