// SPDX-License-Identifier: Apache-2.0
// A record in any form (data/form.h) as one of our own.
#pragma once
#include <boost/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/form.h"

namespace strata::data {

struct OwnRecord {
  Form form = Form::kText;
  boost::json::object object = {};  // one of our own
  size_t first_trained = 0;         // of messages: no turn before this one is trained
  // Of a pair: `object` has the chosen answer, this the rejected one.
  std::optional<boost::json::object> rejected = {};
};

// Throws Error that names field, got and wanted. Names of fields that no form reads are added to
// `ignored` when they are not there yet.
OwnRecord to_own_form(const boost::json::object& record, bool has_template,
                      std::vector<std::string>& ignored);

}  // namespace strata::data
