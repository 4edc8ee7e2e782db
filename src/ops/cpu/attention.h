// Attention on the CPU, arguments already checked by ops/attention.cc. Same meaning and order of
// summation as ops/attention.h.
#pragma once
#include "ops/attention.h"

namespace strata::ops::cpu {

// What attention_backward reads and writes besides its arguments.
struct AttentionGradients {
  TensorView out;    // [T, N, H]
  TensorView lse;    // [T, N]
  TensorView d_out;  // [T, N, H]
  TensorView d_q;    // [T, N, H]
  TensorView d_k;    // [T, M, H]
  TensorView d_v;    // [T, M, H]
};

// Plain loops, no instructions above the baseline: the path `reference`.
void attention_reference(Backend& backend, const AttentionArgs& args, TensorView out,
                         TensorView lse);
void attention_backward_reference(Backend& backend, const AttentionArgs& args,
                                  const AttentionGradients& grads);

// Address of position `position`, key/value head `head` in pages of `element_bytes` elements.
inline const char* kv_row(std::span<void* const> pages, const KvView& kv, int64_t position,
                          int64_t head, int64_t head_dim, int64_t element_bytes) {
  const char* page = static_cast<const char*>(pages[static_cast<size_t>(position / kv.page_size)]);
  const int64_t element = position % kv.page_size * kv.position_stride + head * head_dim;
  return page + element * element_bytes;
}

}  // namespace strata::ops::cpu
