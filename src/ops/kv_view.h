// KvView: keys and values of one sequence in one layer, in pages; borrows. Page p holds positions
// [p * page_size, (p + 1) * page_size). A position's keys are [N_kv, H] contiguous at
// k_pages[p] + (pos % page_size) * position_stride elements; values alike, and may lie inside the
// keys (v_pages = k_pages: latent attention). A contiguous cache, or the K and V of a training
// batch, is the case of one long page.
#pragma once
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace strata::ops {

struct KvView {
  std::span<void* const> k_pages;
  std::span<void* const> v_pages;
  int64_t page_size = 0;
  int64_t position_stride = 0;  // elements
};

}  // namespace strata::ops
