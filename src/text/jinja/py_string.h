// SPDX-License-Identifier: Apache-2.0
// Python's str methods on valid UTF-8. Positions and lengths are code points.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace strata::text {

bool py_is_space(uint32_t c);

// Where `wanted` first and last begins, or npos; in time linear in both, unlike std::string's.
size_t find_text(std::string_view text, std::string_view wanted, size_t from = 0);
size_t rfind_text(std::string_view text, std::string_view wanted);
// How often `wanted`, which is not empty, is found one behind the other.
int64_t count_text(std::string_view text, std::string_view wanted);

// strip, lstrip, rstrip: of the code points in `chars`, or of whitespace when it is empty.
std::string_view py_strip(std::string_view text, std::string_view chars, bool left, bool right);
std::string py_lower(std::string_view text);
std::string py_upper(std::string_view text);
std::string py_capitalize(std::string_view text);
std::string py_title(std::string_view text);
// jinja2's |title: the first letter of a word upper, the rest lower; - ( { [ < and blanks end it.
std::string jinja_title(std::string_view text);

// split and rsplit; an empty separator means runs of whitespace. max_splits < 0: all.
std::vector<std::string> py_split(std::string_view text, std::string_view separator,
                                  int64_t max_splits, bool from_right);
std::vector<std::string> py_splitlines(std::string_view text, bool keep_ends, int64_t max_splits);
// max_count < 0: all. An empty `old` matches between all code points.
std::string py_replace(std::string_view text, std::string_view old, std::string_view with,
                       int64_t max_count);

// Code points of text[begin:end:step], after Python has clipped the bounds.
struct SliceBounds {
  int64_t begin = 0;
  int64_t step = 1;
  int64_t count = 0;
};
SliceBounds py_slice_bounds(int64_t size, const int64_t* begin, const int64_t* end, int64_t step);
std::string py_slice_text(std::string_view text, SliceBounds bounds);
// The byte where the code point `index` begins, or the size.
size_t byte_of(std::string_view text, int64_t index);

enum class CharTest { kAlpha, kDigit, kAlnum, kSpace, kLower, kUpper, kDecimal, kNumeric };
// isalpha, isdigit, ...: false for empty text.
bool py_is_all(std::string_view text, CharTest test);

}  // namespace strata::text
