// SPDX-License-Identifier: Apache-2.0
// Arguments of a call as a format of a structural tag of XGrammar's: an object of JSON, or
// parameters one by one, whose values a family writes bare (call_writing.h).
#pragma once
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/call_writing.h"

namespace strata::server {

struct GrammarTool {
  std::string name;
  std::string schema;      // of its arguments: JSON that check_json_schema() has read
  std::string param = {};  // of the body, the field that it came in
  bool is_strict = false;
};

// Formats of structural tags.
namespace tags {

boost::json::object text(const std::string& value);
boost::json::object schema(boost::json::value of);
boost::json::object sequence(boost::json::array elements);
boost::json::object either(boost::json::array formats);

}  // namespace tags

// Whether a form of calls may write it bare, as a tool's name or a parameter's: ASCII letters,
// digits, _, - and ., and not nothing.
bool is_bare_name(std::string_view name);

// What the form cannot keep of a strict tool's schema is an OpenAiFault; of another's it is passed
// over and added to the warnings.
boost::json::object arguments_format(ArgumentsForm form, const GrammarTool& tool,
                                     std::vector<std::string>& warnings);

}  // namespace strata::server
