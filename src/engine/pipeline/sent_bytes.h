// SPDX-License-Identifier: Apache-2.0
// SentBytes: what a rank sends to others, by what it is, in bytes of payload. Plain values.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>

namespace strata::engine {

enum class Sent : uint8_t {
  kActivations,          // states, to the next stage
  kActivationGradients,  // of them, back
  kGradients,            // of what trains
  kParameters,           // that a step has moved, and weights that ranks divide
  kResults,              // losses and logprobs, and what is gathered
  kControl,              // sums of squares, loads of experts, questions for weights
};
constexpr std::array<std::string_view, 6> kSentNames = {
    "activations", "activation_gradients", "gradients", "parameters", "results", "control"};

struct SentBytes {
  std::array<int64_t, kSentNames.size()> by_kind = {};

  int64_t& operator[](Sent kind) { return by_kind[static_cast<size_t>(kind)]; }
  [[nodiscard]] int64_t total() const {
    return std::accumulate(by_kind.begin(), by_kind.end(), int64_t{0});
  }
  SentBytes& operator+=(const SentBytes& other) {
    for (size_t i = 0; i < by_kind.size(); ++i) by_kind[i] += other.by_kind[i];
    return *this;
  }
  SentBytes& operator-=(const SentBytes& other) {
    for (size_t i = 0; i < by_kind.size(); ++i) by_kind[i] -= other.by_kind[i];
    return *this;
  }
  bool operator==(const SentBytes&) const = default;
};

}  // namespace strata::engine
