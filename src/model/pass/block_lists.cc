// SPDX-License-Identifier: Apache-2.0
#include "model/pass/block_lists.h"

#include <atomic>

namespace strata::model {

size_t BlockLists::next_place() {
  static std::atomic<size_t> next = 0;
  return next.fetch_add(1);
}

}  // namespace strata::model
