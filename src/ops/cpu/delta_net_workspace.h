// SPDX-License-Identifier: Apache-2.0
// Memory of one worker in the backward of the gated delta rule; n = kDeltaChunk.
#pragma once
#include <algorithm>

#include "backend/arena.h"
#include "ops/cpu/delta_net.h"

namespace strata::ops::cpu {

struct DeltaWorkspace {
  float* states;        // [chunks - 1][group] [dk][lanes of dv]: behind each chunk but the last
  float* z;             // [chunks][group] [n][lanes of dv]
  float* d_state;       // [group] [dk][lanes of dv]: of the state behind the chunk, then before it
  float* rows;          // paired [2 n][lanes of dk]
  float* factors;       // paired [2 n]
  float* keys;          // [dk][n]
  float* scores;        // [chunks] paired [2 n][n]
  float* coefficients;  // paired [2 n][n]
  float* gamma;         // [n][n]
  float* decay;         // [n]
  float* total;         // [16]
  float* total_exp;     // [n]
  float* decay_exp;     // [n]
  float* read;          // [n][kPanelLanes]
  float* u;             // [n][kPanelLanes], also the values of the sweep
  float* d_u;           // [n][kPanelLanes]
  float* d_z;           // paired [2 n][kPanelLanes]: -d_z_i and d_o_i
  float* d_reads;       // paired [2 n][kPanelLanes]: the same times e_i, of k_i^T S and q_i^T S
  float* transposed;    // [kPanelLanes][lanes of dk], or [kPanelLanes][n]
  float* packed;        // paired [2 n][kPanelLanes]: a panel of rows
  float* d_rows;        // paired [2 n][lanes of dk]
  float* d_rows_state;  // likewise: what one value head's state adds
  float* d_coefficients;  // paired [2 n][n]
  float* d_scores;        // paired [2 n][n]
  float* d_decay;         // [n][n]
  float* column_sums;     // [n]
  float* d_total;         // [n]
  float* d_fold;          // [n]
  float* d_keep;          // [1]: of e_63
};

// For segments of at most `chunks` chunks.
inline DeltaWorkspace take_delta_workspace(Scratch& scratch, const DeltaLayout& layout,
                                           int64_t chunks) {
  const auto floats = [&](int64_t count) { return static_cast<float*>(scratch.take(4 * count)); };
  constexpr int64_t n = kDeltaChunk;
  DeltaWorkspace work{};
  work.states = floats((chunks - 1) * layout.group * layout.state());
  work.z = floats(chunks * layout.group * layout.chunk_values());
  work.d_state = floats(layout.group * layout.state());
  work.rows = floats(layout.paired_keys());
  work.factors = floats(2 * n);
  work.keys = floats(layout.keys());
  work.scores = floats(chunks * 2 * n * n);
  work.coefficients = floats(2 * n * n);
  work.gamma = floats(n * n);
  work.decay = floats(n);
  work.total = floats(16);
  work.total_exp = floats(n);
  work.decay_exp = floats(n);
  work.read = floats(n * kPanelLanes);
  work.u = floats(n * kPanelLanes);
  work.d_u = floats(n * kPanelLanes);
  work.d_z = floats(2 * n * kPanelLanes);
  work.d_reads = floats(2 * n * kPanelLanes);
  work.transposed = floats(kPanelLanes * std::max(layout.key_lanes, n));
  work.packed = floats(2 * n * kPanelLanes);
  work.d_rows = floats(layout.paired_keys());
  work.d_rows_state = floats(layout.paired_keys());
  work.d_coefficients = floats(2 * n * n);
  work.d_scores = floats(2 * n * n);
  work.d_decay = floats(n * n);
  work.column_sums = floats(n);
  work.d_total = floats(n);
  work.d_fold = floats(n);
  work.d_keep = floats(16);
  return work;
}

}  // namespace strata::ops::cpu
