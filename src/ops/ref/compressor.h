// SPDX-License-Identifier: Apache-2.0
// A compressor of one sequence in plain loops over a scalar S: the oracle of ops/compressor.h.
#pragma once
#include <cmath>
#include <complex>
#include <vector>

namespace strata::ops::ref {

// kv, gate [T, W] and bias [m, W] to the entries [T / m, C].
template <typename S>
std::vector<S> compress(int64_t ratio, bool overlap, const std::vector<S>& kv,
                        const std::vector<S>& gate, const std::vector<S>& bias) {
  const int64_t width = static_cast<int64_t>(bias.size()) / ratio;
  const int64_t channels = overlap ? width / 2 : width;
  const int64_t num_windows = static_cast<int64_t>(kv.size()) / width / ratio;
  std::vector<S> entries;
  for (int64_t w = 0; w < num_windows; ++w) {
    for (int64_t c = 0; c < channels; ++c) {
      S sum = 0;
      S value = 0;
      const auto add = [&](int64_t window, int64_t channel) {
        for (int64_t j = 0; j < ratio; ++j) {
          const auto at = static_cast<size_t>((window * ratio + j) * width + channel);
          const S e = std::exp(gate[at] + bias[static_cast<size_t>(j * width + channel)]);
          sum += e;
          value += e * kv[at];
        }
      };
      if (overlap && w > 0) add(w - 1, c);
      add(w, overlap ? channels + c : c);
      entries.push_back(value / sum);
    }
  }
  return entries;
}

}  // namespace strata::ops::ref
