// SPDX-License-Identifier: Apache-2.0
#include "data/overlong.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace strata::data {
namespace {

// Positions [begin, end).
Example slice_example(const Example& example, size_t begin, size_t end) {
  const auto slice = [&](const auto& values) {
    return std::decay_t<decltype(values)>(values.begin() + static_cast<ptrdiff_t>(begin),
                                          values.begin() + static_cast<ptrdiff_t>(end));
  };
  Example part{.tokens = slice(example.tokens),
               .targets = slice(example.targets),
               .weights = slice(example.weights)};
  part.num_trained = std::count_if(part.weights.begin(), part.weights.end(),
                                   [](float weight) { return weight != 0.0f; });
  return part;
}

}  // namespace

Example cut_example(const Example& example, int64_t max_length) {
  CHECK(max_length >= 2, max_length);
  const auto most = static_cast<size_t>(max_length) - 1;  // the last token is a target alone
  return slice_example(example, 0, std::min(most, example.tokens.size()));
}

std::vector<Example> split_example(const Example& example, int64_t max_length) {
  CHECK(max_length >= 2, max_length);
  const auto most = static_cast<size_t>(max_length) - 1;
  std::vector<Example> pieces;
  for (size_t begin = 0; begin < example.tokens.size(); begin += most) {
    Example piece = slice_example(example, begin, std::min(begin + most, example.tokens.size()));
    if (piece.num_trained > 0) pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace strata::data
