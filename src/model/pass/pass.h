// SPDX-License-Identifier: Apache-2.0
// Pass: everything a block needs to run one flat batch: weights, adapters' rows, positions, where
// keys and values live, and which gradients to accumulate. Built by engine/ for each pass; blocks
// borrow it. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/trace.h"
#include "model/cache_layout.h"
#include "model/pass/block_lists.h"
#include "model/pass/gradient_turns.h"
#include "model/pass/offloaded.h"
#include "model/pass/rope_table.h"
#include "model/pass/rows.h"
#include "model/pass/shared_values.h"
#include "model/weights/weights.h"
#include "ops/gemm.h"

namespace strata::model {

// What is kept of a sequence between passes: its pages and the state of the sequence as a whole,
// in both of which a layer's part is where the pass's layout says. A null page is gone, since no
// query can read its positions any more.
struct SequenceCache {
  std::span<void* const> pages;
  void* state = nullptr;      // where the layout has any
  bool reads_drafts = false;  // the pass does, so that its rows are logged (ReplaySpec)
};

struct PassSequence {
  int64_t begin = 0;  // rows of the flat batch
  int64_t end = 0;
  int64_t first_position = 0;
  LoraAdapter* adapter = nullptr;
  SequenceCache kept;  // empty in training, where nothing is kept
};

// Gradients of the base parameters, [i] like the weight table, f32 row-major. A tied head has its
// own accumulator, so that the order of sums does not depend on how sequences are split into
// passes; the optimizer adds the two.
struct BaseGradients {
  std::vector<TensorView> d_weight;
  TensorView d_tied_head;
  // Gradients of embedding and head by multi-token prediction: apart for the same reason.
  TensorView d_mtp_embedding, d_mtp_head;
  // Rows that each expert had, [i] like the weight table: of the router's bias that is to follow
  // them; all others empty, and no list at all where none is.
  std::vector<std::vector<int64_t>> expert_loads;
};

// What a layer's activations of one tag take in a pass, and what they cost to recompute.
struct SavedCost {
  int64_t layer = 0;
  ScratchTag tag;
  int64_t bytes = 0;
  double flops = 0.0;
};

// What Pass::allocate_saved() takes: all of a layer's activations; of those that are kept the
// memory, while the others stay empty; or the others, among which the kept ones are handed out in
// the same order.
enum class SavePhase : uint8_t { kAll, kTakeKept, kTakeRest };

struct LayerSaves {
  SavePhase phase = SavePhase::kAll;
  const class Recompute* recompute = nullptr;  // but in kAll
  int64_t layer = 0;
  std::vector<TensorView> kept;          // of all layers
  Offloaded offloaded;                   // what of them is in files
  size_t next = 0;                       // in kTakeRest
  std::span<const TensorView> computed;  // while a layer is recomputed: what need not be
  bool again = false;                    // in backward, where nothing is counted a second time

  void clear() {
    kept.clear();
    offloaded.clear();
    again = false;
  }
};

// Lists that a pass builds anew for each sublayer, reused, so that a warm step allocates nothing.
struct PassLists {
  std::vector<SavedCost> saved;  // by layer and tag, where the pass is counted
  LayerSaves saves;
  SharedValues shared;
  std::vector<ops::SegmentProduct> products;
  std::vector<ops::LowRankSegment> low_rank, low_rank_part;  // of some of the rows
  // For a linear's backward: a product for each adapter's rows, its output, and two gradients each.
  std::vector<ops::GemmArgs> low_rank_inputs;
  std::vector<TensorView> low_rank_d_h;
  std::vector<ops::GemmDwArgs> low_rank_gradients;
  // The tokens whose embedding a tensor rank has, by its rows, and their rows of the pass.
  std::vector<int32_t> dealt_ids, dealt_rows;
  BlockLists blocks;  // their own
};

class DeferredProducts;

// The loss that trains indexers (ops/indexer_loss.h), which backward takes.
struct IndexerLoss {
  float weight = 0.0f;           // of it in their gradients
  std::span<float> losses = {};  // [T], a sum over layers: added to
};

struct Pass {
  Backend& backend;
  const ModelWeights& weights;
  const RopeTables& ropes;
  std::span<const int32_t> tokens;     // [T]
  std::span<const int32_t> positions;  // [T]
  std::span<const PassSequence> sequences;
  const RowGroups& rows;
  const CacheLayout& cache;
  PassLists& lists;
  bool adapter_gradients = false;             // accumulate into adapters that train
  BaseGradients* base_gradients = nullptr;    // or none
  bool is_mtp = false;                        // of multi-token prediction (model/mtp.h)
  DeferredProducts* deferred = nullptr;       // takes weight gradients' products; none: they run
  const IndexerLoss* indexer_loss = nullptr;  // or none
  const DealtRows* dealt = nullptr;  // of expert ranks that run other sequences each; or none
  // Turns with the gradients of this rank's experts, where other ranks have the same; or none.
  GradientTurns* expert_turns = nullptr;
  // With the layer whose backward is under way. Where ranks have dealt sequences out, a layer with
  // experts begins it: behind what it exchanges with ranks that wait for this one's turn.
  Turn* turn = nullptr;

  [[nodiscard]] int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  [[nodiscard]] DType dtype() const { return weights.compute_dtype(); }
  // The rows that the experts of this rank may read.
  [[nodiscard]] const RowGroups& expert_rows() const {
    return dealt != nullptr ? dealt->rows : rows;
  }
  // Runs what reads values or acts on them (Backend::unless_counting).
  template <typename Body>
  bool unless_counting(Body&& body) const {
    return backend.unless_counting(std::forward<Body>(body));
  }
  [[nodiscard]] bool cached() const {
    return !sequences.empty() && !sequences[0].kept.pages.empty();
  }
  // A temporary of the scratch.
  [[nodiscard]] TensorView take(DType type, const Shape& shape) const {
    return backend.scratch().take(type, shape);
  }
  // An activation that backward needs, under the field's name for it, and the floating-point work
  // of making it again from what is before it.
  [[nodiscard]] TensorView allocate_saved(ScratchTag tag, double flops, DType type,
                                          const Shape& shape) const;
  // allocate_saved() of a layer and a place that the caller says.
  [[nodiscard]] TensorView allocate_saved(int64_t layer, ScratchTag tag, double flops, DType type,
                                          const Shape& shape, bool in_files) const;
  // Whether backward still has an activation that it would recompute.
  [[nodiscard]] bool is_computed(TensorView activation) const;
  // The activation, or an empty view ("not wanted") where it is computed.
  [[nodiscard]] TensorView unless_computed(TensorView activation) const {
    return is_computed(activation) ? TensorView() : activation;
  }
  // Whether the pass accumulates gradients of a run's adapter.
  [[nodiscard]] bool trains(const AdapterSegment& run) const {
    return adapter_gradients && run.adapter != nullptr && run.adapter->trains();
  }
  // Where a base parameter's gradient goes; empty when it does not train, or in a pass without
  // tokens, which is that of experts alone.
  [[nodiscard]] TensorView base_gradient(size_t index) const {
    if (base_gradients == nullptr || index == ModelWeights::npos) return {};
    if (tokens.empty() && weights.table()[index].expert < 0) return {};
    return base_gradients->d_weight[index];
  }
};

// A span of the timeline; a pass that only counts leaves none.
[[nodiscard]] inline TraceSpan traced(const Pass& pass, std::string_view name, std::string_view key,
                                      int64_t number) {
  std::string_view shown;
  pass.unless_counting([&] { shown = name; });
  return TraceSpan(shown, key, number);
}

}  // namespace strata::model
