// SPDX-License-Identifier: Apache-2.0
// One decoder layer: its sublayers in order, each a connector around a block
// (model/connectors/connector.h). The first reads the layer's input, the last writes its output;
// the residual between them is fp32. Backward takes and returns the residual gradient in fp32.
// Recompute runs forward again: the same kernels on the same input, so the same bits. T tokens, D
// the state's width (of all streams together). Engine thread only.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "model/pass/pass.h"
#include "model/pass/recompute.h"

namespace strata::model {

constexpr size_t kMaxSublayers = 4;

// What backward needs of a forward.
struct LayerSaved {
  std::array<TensorView, kMaxSublayers> states;  // each sublayer's input; [0] decoder_layer_input
  std::array<SublayerSaved, kMaxSublayers> parts;
  size_t first_kept = 0, last_kept = 0;  // what the pass keeps of it, in LayerSaves::kept
};

// Where the Saved structs of blocks and connectors live (the tensors they view are the scratch's).
// Reused from pass to pass: clear() keeps the memory, and a Mark gives back what came after it.
class SavedPool {
 public:
  void clear() { used_ = block_ = 0; }
  void* allocate(size_t bytes);

  class Mark {
   public:
    explicit Mark(SavedPool& pool) : pool_(pool), used_(pool.used_), block_(pool.block_) {}
    ~Mark() {
      pool_.used_ = used_;
      pool_.block_ = block_;
    }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

   private:
    SavedPool& pool_;
    size_t used_, block_;
  };

 private:
  static constexpr size_t kBlockBytes = 64 << 10;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  size_t used_ = 0;
  size_t block_ = 0;
};

// What is kept of a layer whatever is recomputed: x, and from the scratch what blocks must not make
// again.
LayerSaved allocate_never_recomputed(Pass& pass, int64_t layer, TensorView x, SavedPool& pool);
// Takes, from the scratch, memory for the activations that the pass keeps of a layer.
void allocate_kept(Pass& pass, int64_t layer, LayerSaved& kept, SavedPool& pool,
                   const Recompute& recompute);
// Adds the rest of the layer's activations to what is kept, from the scratch; they last as long as
// the caller's Marks let them.
LayerSaved allocate_activations(Pass& pass, int64_t layer, const LayerSaved& kept, SavedPool& pool);
LayerSaved allocate_recomputed(Pass& pass, int64_t layer, const LayerSaved& kept, SavedPool& pool,
                               const Recompute& recompute);

// Reads saved.states[0], fills saved (what is computed already stays), writes out [T, D]; with an
// empty out it only fills.
void decoder_layer_forward(Pass& pass, int64_t layer, const LayerSaved& saved, TensorView out);
// The layer's forward in inference or with recompute: all but what is kept is gone when it returns.
void discarding_forward(Pass& pass, int64_t layer, const LayerSaved& kept, SavedPool& pool,
                        const Recompute& recompute, TensorView out);

// The forward of a layer that reads x, with what its backward needs as the last of `layers`: all,
// or what the pass keeps.
void saving_forward(Pass& pass, int64_t layer, TensorView x, SavedPool& pool,
                    const Recompute& recompute, std::vector<LayerSaved>& layers, TensorView out);

// What backward needs of a layer, from the scratch: recomputes what was not kept and, unless empty,
// `out`.
LayerSaved recompute_layer(Pass& pass, int64_t layer, const LayerSaved& kept, SavedPool& pool,
                           const Recompute& recompute, TensorView out = {});

// decoder_layer_backward() in its turn with the part's gradients.
void backward_in_turn(Pass& pass, int64_t layer, const LayerSaved& saved, Turn turn, TensorView d);

// d [T, D] f32: the gradient of out on entry, of the layer's input on return.
void decoder_layer_backward(Pass& pass, int64_t layer, const LayerSaved& saved, TensorView d);

}  // namespace strata::model
