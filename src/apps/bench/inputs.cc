// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/inputs.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace strata::apps {

void fill_random(Backend& backend, model::ModelWeights& weights) {
  std::vector<float> values;  // of a slice
  for (size_t index = 0; index < weights.table().size(); ++index) {
    const model::Parameter& parameter = weights.table()[index];
    if (!parameter.held) continue;
    const int64_t rows = parameter.num_rows();
    const int64_t cols = parameter.num_cols();
    const int64_t step = std::max<int64_t>(1, (8 << 20) / cols);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t end = std::min(rows, begin + step);
      const Scratch::Mark mark(backend.scratch());
      const TensorView slice = backend.scratch().take(DType::kBF16, {end - begin, cols});
      values.resize(static_cast<size_t>((end - begin) * cols));
      const uint64_t key = (index << 40) + static_cast<uint64_t>(begin * cols);
      constexpr int64_t kEach = 1 << 16;
      const int64_t count = (end - begin) * cols;
      backend.run_on_host((count + kEach - 1) / kEach, [&](int64_t item) {
        for (int64_t i = item * kEach; i < std::min(count, (item + 1) * kEach); ++i) {
          uint64_t x = (key + static_cast<uint64_t>(i)) * 0x9E3779B97F4A7C15ull;
          x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9ull;
          const float unit = static_cast<float>(static_cast<int32_t>(x >> 32)) * 0x1.0p-31f;
          values[static_cast<size_t>(i)] = parameter.is_matrix() ? 0.035f * unit : 1.0f;
        }
      });
      ops::from_host(backend, values, slice);
      weights.write(backend, index, begin, slice);
    }
  }
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t stream) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint64_t x = (stream * 1000003u + i + 1) * 0x9E3779B97F4A7C15ull;
    tokens[i] = static_cast<int32_t>((x >> 33) % static_cast<uint64_t>(vocab));
  }
  return tokens;
}

}  // namespace strata::apps
