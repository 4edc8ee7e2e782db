// SPDX-License-Identifier: Apache-2.0
// A JSON schema that somebody gave, checked before a grammar is made of it. The library that makes
// the grammar reads a part of JSON Schema and passes over the rest; what it would pass over, an
// answer could break, so it is refused here by its path in the schema. Pure.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace strata::structured {

inline constexpr size_t kMaxSchemaBytes = size_t{64} << 10;
inline constexpr size_t kMaxSchemaDepth = 64;         // of nested JSON
inline constexpr size_t kMaxSchemaProperties = 2000;  // named in all of the schema
inline constexpr size_t kMaxSchemaEnumValues = 5000;  // likewise

struct CheckedSchema {
  std::string text = {};  // JSON that says each member once
  // The paths of every oneOf, which the library may yet refuse.
  std::vector<std::string> one_ofs = {};
  std::vector<std::string> warnings = {};  // what was passed over, a line each
};

// Throws Error for what is no JSON, is beyond the limits, or has a keyword or a combination that no
// grammar is made of; `where` is what people call the schema. `is_lenient`: the text is without
// such keywords, and the warnings name them.
CheckedSchema check_json_schema(std::string_view text, const std::string& where,
                                bool is_lenient = false);

// A JSON pointer (RFC 6901) with one more step.
std::string pointer_to(const std::string& path, std::string_view step);

// Throws Error for what OpenAI does not take with "strict": true: an object that lets other
// properties in or does not require all of its own, and a root that is no object.
void check_strict_schema(std::string_view text, const std::string& where);

}  // namespace strata::structured
