// SPDX-License-Identifier: Apache-2.0
// Loops that are unrolled before the compiler decides what lives in registers: with plain loops gcc
// keeps an array of accumulators on the stack around the loop that uses it.
#pragma once
#include <utility>

namespace strata::ops::cpu {
namespace {

template <int kIndex>
struct Index {
  constexpr operator int() const { return kIndex; }  // NOLINT: used like the number
};

template <typename Body, int... kIndices>
[[gnu::always_inline]] inline void unroll_indices(std::integer_sequence<int, kIndices...>,
                                                  const Body& body) {
  (body(Index<kIndices>{}), ...);
}

// body(Index<0>{}), ..., body(Index<kCount - 1>{}). The body should be always_inline.
template <int kCount, typename Body>
[[gnu::always_inline]] inline void unroll(const Body& body) {
  unroll_indices(std::make_integer_sequence<int, kCount>{}, body);
}

}  // namespace
}  // namespace strata::ops::cpu
