// SPDX-License-Identifier: Apache-2.0
// JSON of which the text matters: what a model wrote is handed on as it wrote it.
#pragma once
#include <boost/json/value.hpp>
#include <optional>
#include <string_view>
#include <vector>

namespace strata::server {

// Nothing for what is no JSON, or nested deeper than 64.
std::optional<boost::json::value> parse_json_text(std::string_view text);

// Where the value ends that begins at `at`: a string, or what its brackets hold; of a number or a
// word where the comma or bracket behind it stands. The text's end where it is not closed.
size_t json_value_end(std::string_view text, size_t at);

// The text of an object's member, the last of that name, out of the object's JSON; empty: none.
std::string_view json_member(std::string_view object, std::string_view key);
// The texts of an array's items, out of its JSON.
std::vector<std::string_view> json_items(std::string_view array);

}  // namespace strata::server
