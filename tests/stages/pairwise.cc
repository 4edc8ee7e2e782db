// SPDX-License-Identifier: Apache-2.0
#include "tests/stages/pairwise.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace strata::engine {
namespace {

using Setting = std::pair<int, int>;  // which, and its value
using Pairs = std::set<std::pair<Setting, Setting>>;

Pairs pairs_of(const StagedCase& c) {
  const std::vector<Setting> settings = {
      {0, static_cast<int>(std::hash<std::string>()(c.model) % 1'000'000)},
      {1, c.num_ranks},
      {2, c.num_chunks},
      {3, static_cast<int>(c.kind)},
      {4, c.parameters ? 1 : 0},
      {5, static_cast<int>(c.again)},
      {6, c.dtype == DType::kF32 ? 1 : 0},
      {7, c.data},
      {8, c.shards ? 1 : 0}};
  Pairs pairs;
  for (size_t i = 0; i < settings.size(); ++i) {
    for (size_t j = 0; j < i; ++j) pairs.emplace(settings[j], settings[i]);
  }
  return pairs;
}

// Of the remaining ones always the one with the most new pairs.
std::vector<StagedCase> pairwise(const std::vector<StagedCase>& all) {
  std::vector<Pairs> pairs;
  Pairs missing;
  for (const StagedCase& c : all) {
    pairs.push_back(pairs_of(c));
    missing.insert(pairs.back().begin(), pairs.back().end());
  }
  std::vector<StagedCase> chosen;
  while (!missing.empty()) {
    size_t best = 0, most = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      size_t count = 0;
      for (const auto& pair : pairs[i]) count += missing.count(pair);
      if (count > most) best = i;
      most = std::max(most, count);
    }
    for (const auto& pair : pairs[best]) missing.erase(pair);
    chosen.push_back(all[best]);
  }
  return chosen;
}

}  // namespace

std::vector<StagedCase> chosen_of(const std::vector<StagedCase>& all) {
  const char* which = std::getenv("STRATA_STAGES");
  return which != nullptr && std::string_view(which) == "all" ? all : pairwise(all);
}

}  // namespace strata::engine
