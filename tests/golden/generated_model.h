// SPDX-License-Identifier: Apache-2.0
// A checkpoint with adapters whose numbers follow from a seed: tools/golden/generated_model.py,
// which describes the case's JSON, makes the same bytes.
#pragma once
#include <boost/json.hpp>
#include <string>
#include <vector>

namespace strata::golden {

struct GeneratedModel {
  std::string model;  // a folder
  std::vector<std::string> adapters;
};

// Writes folder/model and folder/0, folder/1, ...
GeneratedModel write_generated(const boost::json::object& row, const std::string& folder);

}  // namespace strata::golden
