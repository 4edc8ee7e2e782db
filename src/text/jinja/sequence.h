// SPDX-License-Identifier: Apache-2.0
// What Python does with sequences: lists, tuples and texts, by the items they hold.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/py_string.h"
#include "text/jinja/value.h"

namespace strata::text {

bool is_list_or_tuple(const Value& value);
// A text, a list or a tuple `count` times behind itself; empty where that is not above 0.
Value repeat_value(const Value& value, int64_t count);
// Joins two lists of one kind, which the result has too.
Value concat_lists(const List& a, const List& b);
// `slice` is within the list: py_slice_bounds of its size.
Value slice_list(const List& list, SliceBounds slice);
// An element of a text or a sequence, counted from its end below 0; nothing where it ends before.
std::optional<Value> element_at(const Value& object, int64_t index);
std::vector<Value> characters_of(std::string_view text);

}  // namespace strata::text
