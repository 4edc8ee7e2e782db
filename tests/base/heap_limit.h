// SPDX-License-Identifier: Apache-2.0
// Lets operator new fail, in a program of which one source includes heap_count.h.
//   const bool lacked = lacks_memory(3, [&] { run(); });  // for its fourth allocation
#pragma once
#include <cstdint>
#include <limits>
#include <new>

namespace strata::testing {

inline thread_local int64_t allocations_left = std::numeric_limits<int64_t>::max();

// Whether more than so many allocations were asked for, of which the next one failed.
template <typename Run>
bool lacks_memory(int64_t allocations, Run&& run) {
  bool lacked = false;
  allocations_left = allocations;
  try {
    run();
  } catch (const std::bad_alloc&) {
    lacked = true;
  }
  allocations_left = std::numeric_limits<int64_t>::max();
  return lacked;
}

}  // namespace strata::testing
