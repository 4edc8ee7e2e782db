// SPDX-License-Identifier: Apache-2.0
// The steps of the gated delta rule's backward, which delta_net_backward.cc explains: of a key
// head, of its chunks, of their value heads and of the panels of these.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/cpu/delta_net.h"
#include "ops/cpu/delta_net_workspace.h"

namespace strata::ops::cpu {

struct DeltaBackward {
  // A chunk of a segment.
  struct Chunk {
    int64_t index;
    int64_t row;  // of the batch
    int64_t count;
    bool reads;  // not the first: its state is not zero
    bool folds;  // not the last: what is behind it depends on it
  };

  const DeltaKernels& kernels;
  const DeltaNetArgs& args;
  const DeltaGradients& grads;
  DeltaLayout layout;

  [[nodiscard]] Chunk chunk(const StateSegment& segment, int64_t index) const {
    const int64_t row = segment.begin + index * kDeltaChunk;
    return {.index = index,
            .row = row,
            .count = std::min(kDeltaChunk, segment.end - row),
            .reads = index > 0,
            .folds = row + kDeltaChunk < segment.end};
  }
  // Where the state behind chunk `index` is, and the z of chunk `index`.
  [[nodiscard]] float* state(const DeltaWorkspace& work, int64_t index, int64_t member) const {
    return work.states + (index * layout.group + member) * layout.state();
  }
  [[nodiscard]] float* z(const DeltaWorkspace& work, int64_t index, int64_t member) const {
    return work.z + (index * layout.group + member) * layout.chunk_values();
  }
  [[nodiscard]] const float* beta(const Chunk& c, int64_t value_head) const {
    return args.beta.f32() + c.row * args.beta.row_stride + value_head;
  }
  // Where the products of keys with the chunk's keys are and, between them, those of queries.
  [[nodiscard]] float* scores(const Chunk& c, const DeltaWorkspace& work) const {
    return work.scores + c.index * 2 * kDeltaChunk * kDeltaChunk;
  }
  enum Side : uint8_t { kKeys, kQueries };
  void compute_side_scores(const Chunk& c, Side side, const DeltaWorkspace& work) const;
  // q and k of a key head in the chunk, normalised, and k again as columns in work.keys; keys_only:
  // the rows of q stay what they were.
  void normalise_chunk_qk(const Chunk& c, int64_t head, bool keys_only,
                          const DeltaWorkspace& work) const;
  void compute_decays_and_coefficients(const Chunk& c, int64_t value_head, float* gamma,
                                       const DeltaWorkspace& work) const;
  void recompute_panel(const Chunk& c, int64_t value_head, int64_t member, int64_t begin,
                       int64_t width, int64_t columns, const DeltaWorkspace& work) const;
  void recompute_value_head(const Chunk& c, int64_t head, int64_t member,
                            const DeltaWorkspace& work) const;
  void multiply_keys_by_state(const Chunk& c, const float* panel, int64_t width,
                              const DeltaWorkspace& work) const;
  void decay_backward(const Chunk& c, int64_t member, float* d_log_decay,
                      const DeltaWorkspace& work) const;
  void total_backward(const Chunk& c, const DeltaWorkspace& work) const;
  void value_head_backward(const Chunk& c, int64_t head, int64_t member,
                           const DeltaWorkspace& work) const;
  void solve_backward(const Chunk& c, int64_t head, int64_t member, int64_t begin, int64_t width,
                      int64_t columns, const DeltaWorkspace& work) const;
  void prepare_panel(const Chunk& c, int64_t value_head, const float* z_panel, int64_t begin,
                     int64_t width, int64_t columns, const DeltaWorkspace& work) const;
  void compute_d_u_and_d_fold_by_state(const Chunk& c, int64_t member, int64_t begin, int64_t width,
                                       const DeltaWorkspace& work) const;
  void add_to_d_u_by_outputs(const Chunk& c, int64_t width, const DeltaWorkspace& work) const;
  void add_to_d_beta(const Chunk& c, int64_t value_head, const float* z_panel, int64_t begin,
                     int64_t width, const DeltaWorkspace& work) const;
  void store_d_v(const Chunk& c, int64_t value_head, int64_t begin, int64_t width, int64_t columns,
                 const DeltaWorkspace& work) const;
  void compute_d_coefficients(const Chunk& c, int64_t width, bool add,
                              const DeltaWorkspace& work) const;
  void compute_d_reads(const Chunk& c, int64_t width, const DeltaWorkspace& work) const;
  void add_to_d_rows_state(const Chunk& c, int64_t begin, int64_t width,
                           const DeltaWorkspace& work) const;
  void update_d_state(const Chunk& c, int64_t member, int64_t begin, int64_t width,
                      const DeltaWorkspace& work) const;
  void state_product_backward(const Chunk& c, int64_t member, int64_t begin, int64_t width,
                              const DeltaWorkspace& work) const;
  void add_chunk_to_state_backward(const Chunk& c, int64_t member, int64_t begin, int64_t width,
                                   const DeltaWorkspace& work) const;
  void transpose_state(const float* panel, int64_t width, const DeltaWorkspace& work) const;
  void add_d_rows_by_scores(const Chunk& c, int64_t begin, int64_t lanes,
                            const DeltaWorkspace& work) const;
  void add_d_keys_by_scores(const Chunk& c, int64_t begin, int64_t lanes,
                            const DeltaWorkspace& work) const;
  void scores_backward(const Chunk& c, const DeltaWorkspace& work) const;
  void norms_backward(const Chunk& c, int64_t head, const DeltaWorkspace& work) const;
  void recompute_chunks(const StateSegment& segment, int64_t head,
                        const DeltaWorkspace& work) const;
  void key_head_backward(const StateSegment& segment, int64_t head,
                         const DeltaWorkspace& work) const;
};

}  // namespace strata::ops::cpu
