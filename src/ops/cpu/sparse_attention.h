// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4's attention on the CPU, arguments already checked by ops/sparse_attention.cc.
#pragma once
#include "ops/cpu/attention.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/sparse_attention.h"

namespace strata::ops::cpu {

// The keys of one query, in the order in which they are summed.
struct SparseKeys {
  const SparseAttentionArgs& args;
  const SparseSegment& segment;
  int64_t first_key;  // position
  int64_t num_local;
  int64_t num_entries;
  const int32_t* ids = nullptr;  // of the entries; null: 0, 1, ...

  SparseKeys(const SparseAttentionArgs& arguments, const SparseSegment& of, int64_t row)
      : args(arguments), segment(of) {
    const int64_t position = of.first_position + row - of.begin;
    first_key = args.first_key(position);
    num_local = position + 1 - first_key;
    num_entries = args.num_entries(position);
    if (args.selected.empty()) return;
    ids = args.selected.numbers().data() + row * args.top_k;
    num_entries = 0;
    while (num_entries < args.top_k && ids[num_entries] >= 0) ++num_entries;
  }
  [[nodiscard]] int64_t count() const { return num_local + num_entries; }
  [[nodiscard]] int64_t entry(int64_t index) const { return ids == nullptr ? index : ids[index]; }

  // rows[i] = address of key first + i.
  void find_rows(int64_t first, int64_t count, const void** rows) const {
    const int64_t bytes = dtype_bytes(args.q.dtype);
    const int64_t local = std::clamp<int64_t>(num_local - first, 0, count);
    if (local > 0) {
      find_kv_rows(segment.window, &KvRange::keys, first_key + first, local, 0, args.width(), bytes,
                   rows);
    }
    if (local < count) find_entry_rows(first + local - num_local, count - local, rows + local);
  }

  // rows[i] = address of the first + i-th of the query's entries.
  void find_entry_rows(int64_t first, int64_t count, const void** rows) const {
    const int64_t bytes = dtype_bytes(args.q.dtype);
    if (ids == nullptr) {
      find_kv_rows(segment.entries, &KvRange::keys, first, count, 0, args.width(), bytes, rows);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      find_kv_rows(segment.entries, &KvRange::keys, ids[first + i], 1, 0, args.width(), bytes,
                   rows + i);
    }
  }
};

// A token of the batch.
struct SparseToken {
  const SparseSegment* segment;
  int64_t row;
};

inline int64_t num_tokens_of(const SparseAttentionArgs& args) {
  int64_t count = 0;
  for (const SparseSegment& s : args.segments) count += s.end - s.begin;
  return count;
}

// The tokens of all segments, in scratch.
inline const SparseToken* list_tokens(CpuBackend& backend, const SparseAttentionArgs& args) {
  auto* tokens = static_cast<SparseToken*>(
      backend.scratch().take(num_tokens_of(args) * static_cast<int64_t>(sizeof(SparseToken))));
  if (backend.is_counting()) return tokens;
  int64_t count = 0;
  for (const SparseSegment& s : args.segments) {
    for (int64_t row = s.begin; row < s.end; ++row) tokens[count++] = {&s, row};
  }
  return tokens;
}

// Where the gradient of a query's key `index` is summed.
inline float* d_key_row(const SparseGradients& grads, const SparseKeys& keys, int64_t index) {
  const int64_t width = grads.d_keys.cols();
  if (index < keys.num_local) {
    return grads.d_keys.f32() + (keys.segment.begin + keys.first_key + index) * width;
  }
  const int64_t entry = keys.segment.first_entry + keys.entry(index - keys.num_local);
  return grads.d_entries.f32() + entry * width;
}

void sparse_attention(CpuBackend& backend, const SparseAttentionArgs& args, TensorView out,
                      TensorView lse);
void sparse_attention_backward(CpuBackend& backend, const SparseAttentionArgs& args,
                               const SparseGradients& grads, TensorView d_sinks);

// Plain loops, no instructions above the baseline: the path `reference`. Backward leaves delta [T,
// N] f32 = sum d_out out, of which the sinks' gradient is made; d_keys and d_entries are zero.
void sparse_attention_reference(CpuBackend& backend, const SparseAttentionArgs& args,
                                TensorView out, TensorView lse);
void sparse_attention_backward_reference(CpuBackend& backend, const SparseAttentionArgs& args,
                                         const SparseGradients& grads, TensorView delta);

// The other paths, with the kernels of ops/attention.h.
void sparse_attention_tiled(CpuBackend& backend, const AttentionKernels& kernels,
                            const SparseAttentionArgs& args, TensorView out, TensorView lse);
void sparse_attention_backward_tiled(CpuBackend& backend, const AttentionKernels& kernels,
                                     const SparseAttentionArgs& args, const SparseGradients& grads,
                                     TensorView delta);

}  // namespace strata::ops::cpu
