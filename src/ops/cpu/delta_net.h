// SPDX-License-Identifier: Apache-2.0
// The CPU behind ops/delta_net.h: arguments are checked; same meaning and order of summation.
#pragma once
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_path.h"
#include "ops/cpu/delta_net_kernels.h"
#include "ops/delta_net.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

void delta_net(CpuBackend& backend, const DeltaNetArgs& args, TensorView out);
void delta_net_backward(CpuBackend& backend, const DeltaNetArgs& args, const DeltaGradients& grads);

// Sizes in floats of what is in memory. A sequence's state begins with the decays of all value
// heads: D_ij [kDeltaChunk] and G_i [16, the first used] of the last row i. Then comes for each key
// head
//   keys [dk][kDeltaChunk] of the open chunk, normalised
//   for each value head of its group: the state at the chunk's start [dk][lanes of dv] and u
//   [kDeltaChunk][lanes of dv], both in panels
struct DeltaLayout {
  DeltaNetShape shape;
  int64_t group;
  int64_t key_lanes;
  int64_t value_lanes;

  explicit DeltaLayout(const DeltaNetShape& s)
      : shape(s),
        group(s.group()),
        key_lanes((s.key_dim + 15) / 16 * 16),
        value_lanes((s.value_dim + 15) / 16 * 16) {}

  [[nodiscard]] int64_t keys() const { return shape.key_dim * kDeltaChunk; }
  [[nodiscard]] int64_t state() const { return shape.key_dim * value_lanes; }
  [[nodiscard]] int64_t chunk_values() const { return kDeltaChunk * value_lanes; }
  [[nodiscard]] int64_t paired_keys() const { return 2 * kDeltaChunk * key_lanes; }
  [[nodiscard]] int64_t decays() const { return group * (kDeltaChunk + 16); }  // of a key head
  [[nodiscard]] int64_t member() const { return state() + chunk_values(); }
  [[nodiscard]] int64_t key_head() const { return keys() + group * member(); }

  // First element of head `head` in a row of qkv.
  [[nodiscard]] int64_t q_column(int64_t head) const { return head * shape.key_dim; }
  [[nodiscard]] int64_t k_column(int64_t head) const {
    return (shape.num_key_heads + head) * shape.key_dim;
  }
  [[nodiscard]] int64_t v_column(int64_t value_head) const {
    return 2 * shape.num_key_heads * shape.key_dim + value_head * shape.value_dim;
  }
};

// Calls body(begin, width, columns) for the panels of a matrix with `dim` columns: lanes [begin,
// begin + width), the first `columns` of them in use. A panel of n rows starts at n * begin.
template <typename Body>
void for_delta_panels(int64_t dim, Body&& body) {
  for (int64_t begin = 0; begin < dim; begin += kPanelLanes) {
    const int64_t columns = std::min(kPanelLanes, dim - begin);
    body(begin, (columns + 15) / 16 * 16, columns);
  }
}

// What of a key head's state is where; in a sequence's own memory or in a worker's.
struct DeltaState {
  const DeltaLayout& layout;
  float* decays;
  float* base;

  [[nodiscard]] float* keys() const { return base; }
  [[nodiscard]] float* state(int64_t member) const {
    return base + layout.keys() + member * layout.member();
  }
  [[nodiscard]] float* u(int64_t member) const { return state(member) + layout.state(); }
  [[nodiscard]] float* decay(int64_t member) const { return decays + member * (kDeltaChunk + 16); }
  [[nodiscard]] float* total(int64_t member) const { return decay(member) + kDeltaChunk; }
};

// The matrix that starts at element (row, column) of a tensor.
inline DeltaMatrix delta_matrix_at(const TensorView& view, int64_t row, int64_t column) {
  return {.data = static_cast<const char*>(view.row(row)) + column * dtype_bytes(view.dtype),
          .type = view.dtype,
          .stride = view.row_stride};
}

// Rows of a key head that follow one another in a chunk, from row `first` of it on.
struct DeltaRows {
  TensorView qkv;
  int64_t head = 0;
  int64_t row = 0;  // of the batch
  int64_t first = 0;
  int64_t count = 0;
  bool keys_only = false;    // q's rows stay as they are
  float* rows = nullptr;     // paired [2 count][lanes of dk]
  float* factors = nullptr;  // paired [2 count]
  float* keys = nullptr;     // [dk][kDeltaChunk]: columns from `first` on
};

// Writes q and k, normalised, and what they were multiplied by.
inline void normalise_qk(const DeltaKernels& kernels, const DeltaLayout& layout,
                         const DeltaRows& r) {
  const int64_t dim = layout.shape.key_dim;
  const DeltaMatrix q = delta_matrix_at(r.qkv, r.row, layout.q_column(r.head));
  kernels.normalise({.q = r.keys_only ? DeltaMatrix{} : q,
                     .k = delta_matrix_at(r.qkv, r.row, layout.k_column(r.head)),
                     .count = r.count,
                     .dim = dim,
                     .q_scale = 1.0f / std::sqrt(static_cast<float>(dim)),
                     .out = r.rows,
                     .lanes = layout.key_lanes,
                     .factors = r.factors});
  kernels.transpose_keys(r.rows, 2 * layout.key_lanes, r.first, r.count, dim, r.keys);
}

// A panel of the state behind a chunk: S' = e_63 S + sum_j k_j (E_j u_j)^T.
struct DeltaStateUpdate {
  const float* keys = nullptr;       // [dk][kDeltaChunk]
  const float* decay_exp = nullptr;  // [kDeltaChunk] E_j
  float total_exp = 1.0f;            // e_63
  const float* before = nullptr;     // S [dk][width]; null: zero
  float* u = nullptr;                // [kDeltaChunk][width]; E_j u_j goes in place of u_j
  float* behind = nullptr;           // S', may be S
  int64_t width = 0;
};

inline void add_chunk_to_state(const DeltaKernels& kernels, const DeltaLayout& layout,
                               const DeltaStateUpdate& s) {
  kernels.scale_rows(s.u, s.width, s.decay_exp, 1, kDeltaChunk, s.width, s.u, s.width);
  kernels.multiply({.x = s.keys,
                    .x_row = kDeltaChunk,
                    .panel = s.u,
                    .panel_stride = s.width,
                    .depth = kDeltaChunk,
                    .rows = layout.shape.key_dim,
                    .lanes = s.width,
                    .init = s.before,
                    .init_stride = s.width,
                    .keep = s.total_exp,
                    .out = s.behind,
                    .out_stride = s.width});
}

}  // namespace strata::ops::cpu
