// SPDX-License-Identifier: Apache-2.0
// Names that a file of data has for the fields that are read: --fields
// question=prompt,answer=completion. A record is read as if its fields had the names behind the
// equals signs; fields without one keep theirs.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace strata::data {

struct FieldName {
  std::string in_file, read_as;
};

// Throws Error that names the option: pairs that are none, a name that no form of data has
// (data/form.h), a name twice. Nothing of an empty text.
std::vector<FieldName> parse_field_names(const std::string& text);

// The record with those names. What is no JSON object stays as it is, for who reads it to refuse.
// Throws Error where it has the name already.
std::string rename_fields(std::string_view record, const std::vector<FieldName>& names);

}  // namespace strata::data
