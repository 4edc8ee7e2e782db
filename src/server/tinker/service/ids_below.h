// SPDX-License-Identifier: Apache-2.0
// Ids of a table that begin with what they are below: those of a session's models or samplers.
#pragma once
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace strata::server {

// In order, `most` at most.
template <typename Row>
std::vector<std::string> ids_below(const std::map<std::string, Row>& rows,
                                   const std::string& prefix, int64_t most = INT64_MAX) {
  std::vector<std::string> ids;
  for (auto at = rows.lower_bound(prefix);
       at != rows.end() && at->first.starts_with(prefix) && std::ssize(ids) < most; ++at)
    ids.push_back(at->first);
  return ids;
}

}  // namespace strata::server
