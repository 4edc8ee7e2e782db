// SPDX-License-Identifier: Apache-2.0
// A record in any form (data/form.h) as one of our own.
#pragma once
#include <boost/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/form.h"

namespace strata::data {

// In an object of ours: the field of the record that its last message is from.
inline constexpr std::string_view kAnswerField = "answer field";

struct OwnRecord {
  Form form = Form::kText;
  boost::json::object object = {};  // one of our own
  // No turn of messages before this one is trained; of a pair none that both answers share.
  size_t first_trained = 0;
  // The rejected answer of a pair, whose chosen one `object` has.
  std::optional<boost::json::object> rejected = {};
  bool is_tie = false;  // of a pair: its scores say that neither answer is better
  // Where messages stand in the record, behind so many that come from elsewhere in it.
  std::string turns_field = "messages";
  size_t num_added = 0;
};

// Throws Error that names field, got and wanted. Names of fields that no form reads are added to
// `ignored` when they are not there yet.
OwnRecord to_own_form(const boost::json::object& record, bool has_template,
                      std::vector<std::string>& ignored);

}  // namespace strata::data
