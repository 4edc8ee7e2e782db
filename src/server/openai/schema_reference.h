// SPDX-License-Identifier: Apache-2.0
// $ref of JSON Schema, inside one text.
#pragma once
#include <boost/json/value.hpp>

namespace strata::server {

// The schema that `schema` is, or leads to by "$ref": "#" or "#/PATH", at most 16 of them; what
// leads nowhere stays what it is. `root`: the whole text, which `schema` is a part of.
const boost::json::value& follow_references(const boost::json::value& schema,
                                            const boost::json::value& root);

}  // namespace strata::server
