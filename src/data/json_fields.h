// SPDX-License-Identifier: Apache-2.0
// Fields of a record of data, with faults that say name, got and wanted.
#pragma once
#include <boost/json.hpp>
#include <string>
#include <string_view>

namespace strata::data {

// Throws Error{kInvalidArgument}; who calls adds file and line.
[[noreturn]] void fail_record(const std::string& what);
// "a string", "a list", ...
std::string kind_of(const boost::json::value& value);
// The field where it is there and not null; else null.
const boost::json::value* field_of(const boost::json::object& object, std::string_view name);
std::string require_string_field(const boost::json::object& object, std::string_view name);

}  // namespace strata::data
