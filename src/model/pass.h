// Pass: everything a block needs to run one flat batch: weights, adapters' rows, positions, where
// keys and values live, and which gradients to accumulate. Built by engine/ for each pass; blocks
// borrow it. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/expert_rows.h"
#include "model/rope_table.h"
#include "model/rows.h"
#include "model/weights.h"
#include "ops/gemm.h"

namespace strata::model {

// Pages of one sequence, all layers: page p holds, for layer l, keys at element offset (2 l) *
// page_size * kv_width and values at (2 l + 1) * page_size * kv_width; of latent attention, rows of
// latent and rotated key at l * page_size * cache_width.
struct KvPages {
  std::span<void* const> pages;
  int64_t page_size = 0;
};

struct PassSequence {
  int64_t begin = 0;  // rows of the flat batch
  int64_t end = 0;
  int64_t first_position = 0;
  LoraAdapter* adapter = nullptr;
  KvPages kv;  // empty in training: keys and values are read where the projections wrote them
};

// Gradients of the base parameters, [i] like the weight table, f32 row-major. A tied head has its
// own accumulator, so that the order of sums does not depend on how sequences are split into
// passes; the optimizer adds the two.
struct BaseGradients {
  std::vector<TensorView> d_weight;
  TensorView d_tied_head;
};

struct Pass {
  Backend& backend;
  const ModelWeights& weights;
  const RopeTable& rope;
  std::span<const int32_t> tokens;     // [T]
  std::span<const int32_t> positions;  // [T]
  std::span<const PassSequence> sequences;
  const RowGroups& rows;
  bool adapter_gradients = false;           // accumulate into adapters that train
  BaseGradients* base_gradients = nullptr;  // or none
  std::vector<ops::RunProduct>&
      product_buffer;  // these two are reused, so that a warm step allocates nothing
  std::vector<ops::LowRankRun>& run_buffer;  // reused, so that a warm step allocates nothing
  ExpertRows& expert_rows;                   // of the sparse layer at work, reused too

  [[nodiscard]] int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  [[nodiscard]] DType dtype() const { return weights.compute_dtype(); }
  [[nodiscard]] bool cached() const { return !sequences.empty() && !sequences[0].kv.pages.empty(); }
};

}  // namespace strata::model
