// SPDX-License-Identifier: Apache-2.0
#include "server/openai/schema_reference.h"

#include <boost/json.hpp>
#include <string_view>

namespace strata::server {

namespace json = boost::json;

const json::value& follow_references(const json::value& schema, const json::value& root) {
  constexpr int kMostSteps = 16;
  const json::value* at = &schema;
  for (int step = 0; step < kMostSteps; ++step) {
    const auto* object = at->if_object();
    const json::value* name = object == nullptr ? nullptr : object->if_contains("$ref");
    if (name == nullptr || !name->is_string()) break;
    const std::string_view path = name->get_string();
    if (!path.starts_with('#')) break;
    boost::system::error_code fault;
    const json::value* to = root.find_pointer(path.substr(1), fault);
    if (to == nullptr) break;
    at = to;
  }
  return *at;
}

}  // namespace strata::server
