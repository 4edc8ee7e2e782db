// SPDX-License-Identifier: Apache-2.0
// MemoryShare: one of so many ranks that divide memory among themselves
// (backend/divided_memory.h). Plain values.
#pragma once

namespace strata {

struct MemoryShare {
  int rank = 0;
  int num_ranks = 1;
  [[nodiscard]] bool is_divided() const { return num_ranks > 1; }
};

}  // namespace strata
