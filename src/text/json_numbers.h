// SPDX-License-Identifier: Apache-2.0
// Numbers of JSON as a format with 32 bits for each has them.
#pragma once
#include <string>
#include <string_view>

namespace strata::text {

// The object with each number that is no integer rounded to 32 bits and written as the shortest
// decimal that is read as those. `where` names the text in messages; throws Error.
std::string round_json_numbers_to_f32(std::string_view text, const std::string& where);

}  // namespace strata::text
