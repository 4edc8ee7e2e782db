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
  std::string text;                  // JSON that says each member once
  std::vector<std::string> one_ofs;  // the paths of every oneOf, which the library may yet refuse
};

// Throws Error for what is no JSON, is beyond the limits, or has a keyword or a combination that no
// grammar is made of; `where` is what people call the schema.
CheckedSchema check_json_schema(std::string_view text, const std::string& where);

}  // namespace strata::structured
