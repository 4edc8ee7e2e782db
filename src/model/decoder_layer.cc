// SPDX-License-Identifier: Apache-2.0
#include "model/decoder_layer.h"

#include <algorithm>

namespace strata::model {

namespace {

constexpr size_t kAlignment = 64;

size_t align_up(size_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

std::byte* first_aligned(std::byte* base) {
  const auto address = reinterpret_cast<uintptr_t>(base);
  return base + (kAlignment - address % kAlignment) % kAlignment;
}

}  // namespace

void* SavedPool::allocate(size_t bytes) {
  const size_t size = align_up(bytes);
  CHECK(size <= kBlockBytes - kAlignment, bytes);
  if (block_ < blocks_.size() && used_ + size > kBlockBytes - kAlignment) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) blocks_.push_back(std::make_unique<std::byte[]>(kBlockBytes));
  void* data = first_aligned(blocks_[block_].get()) + used_;
  used_ += size;
  return data;
}

LayerSaved allocate_never_recomputed(Pass& pass, int64_t layer, TensorView x, SavedPool& pool) {
  LayerSaved saved;
  saved.states[0] = x;
  const std::span<const SublayerContext> sublayers = pass.weights.layer(layer);
  for (size_t s = 0; s < sublayers.size(); ++s) {
    const BlockOps& block = *sublayers[s].block;
    saved.parts[s].inner = pool.allocate(block.saved_bytes);
    block.construct(saved.parts[s].inner);
    block.allocate_always_kept(pass, sublayers[s].inner, saved.parts[s].inner);
  }
  return saved;
}

namespace {

// The work of making the state behind a sublayer again.
double output_flops(const Pass& pass, const SublayerContext& sublayer) {
  return sublayer.connector->saves_output ? 0.0
                                          : sublayer.block->output_flops(pass, sublayer.inner);
}

}  // namespace

LayerSaved allocate_activations(Pass& pass, int64_t layer, const LayerSaved& kept,
                                SavedPool& pool) {
  LayerSaved saved;
  saved.states[0] = kept.states[0];
  saved.first_kept = kept.first_kept;
  saved.last_kept = kept.last_kept;
  pass.lists.saves.layer = layer;
  const TensorView& x = kept.states[0];
  const std::span<const SublayerContext> sublayers = pass.weights.layer(layer);
  for (size_t s = 0; s < sublayers.size(); ++s) {
    if (s > 0) {
      saved.states[s] = pass.allocate_saved("out_proj", output_flops(pass, sublayers[s - 1]),
                                            DType::kF32, {x.rows(), x.cols()});
    }
    const SublayerContext& sublayer = sublayers[s];
    SublayerSaved& part = saved.parts[s];
    part.outer = pool.allocate(sublayer.connector->saved_bytes);
    sublayer.connector->construct(part.outer);
    sublayer.connector->allocate_saved(pass, sublayer, part.outer);
    part.inner = kept.parts[s].inner;
    sublayer.block->allocate_saved(pass, sublayer.inner, part.inner);
  }
  return saved;
}

void allocate_kept(Pass& pass, int64_t layer, LayerSaved& kept, SavedPool& pool,
                   const Recompute& recompute) {
  const SavedPool::Mark mark(pool);
  LayerSaves& saves = pass.lists.saves;
  saves.recompute = &recompute;
  saves.phase = SavePhase::kTakeKept;
  kept.first_kept = saves.kept.size();
  allocate_activations(pass, layer, kept, pool);
  kept.last_kept = saves.kept.size();
  saves.phase = SavePhase::kAll;
}

LayerSaved allocate_recomputed(Pass& pass, int64_t layer, const LayerSaved& kept, SavedPool& pool,
                               const Recompute& recompute) {
  LayerSaves& saves = pass.lists.saves;
  saves.recompute = &recompute;
  saves.phase = SavePhase::kTakeRest;
  saves.next = kept.first_kept;
  const LayerSaved saved = allocate_activations(pass, layer, kept, pool);
  CHECK(saves.next == kept.last_kept, saves.next, kept.last_kept);
  saves.phase = SavePhase::kAll;
  return saved;
}

namespace {

// A pass without tokens runs its experts for other ranks, and nothing else.
bool has_work(const Pass& pass, const SublayerContext& sublayer) {
  return pass.num_tokens() > 0 || sublayer.block->exchanges_rows;
}

}  // namespace

void decoder_layer_forward(Pass& pass, int64_t layer, const LayerSaved& saved, TensorView out) {
  const TraceSpan whole = traced(pass, "layer", "layer", layer);
  const std::span<const SublayerContext> sublayers = pass.weights.layer(layer);
  for (size_t s = 0; s < sublayers.size(); ++s) {
    if (!has_work(pass, sublayers[s])) continue;
    const TraceSpan span = traced(pass, sublayers[s].block->name, "layer", layer);
    const TensorView to =
        s + 1 < sublayers.size() ? pass.unless_computed(saved.states[s + 1]) : out;
    sublayers[s].connector->forward(pass, sublayers[s], saved.parts[s], saved.states[s], to);
  }
}

void discarding_forward(Pass& pass, int64_t layer, const LayerSaved& kept, SavedPool& pool,
                        const Recompute& recompute, TensorView out) {
  const Scratch::Mark mark(pass.backend.scratch());
  const SavedPool::Mark saved_mark(pool);
  decoder_layer_forward(pass, layer, allocate_recomputed(pass, layer, kept, pool, recompute), out);
}

void saving_forward(Pass& pass, int64_t layer, TensorView x, SavedPool& pool,
                    const Recompute& recompute, std::vector<LayerSaved>& layers, TensorView out) {
  LayerSaved kept = allocate_never_recomputed(pass, layer, x, pool);
  if (recompute.keeps_all()) {
    layers.push_back(allocate_activations(pass, layer, kept, pool));
    return decoder_layer_forward(pass, layer, layers.back(), out);
  }
  allocate_kept(pass, layer, kept, pool, recompute);
  layers.push_back(kept);
  discarding_forward(pass, layer, kept, pool, recompute, out);
}

LayerSaved recompute_layer(Pass& pass, int64_t layer, const LayerSaved& kept, SavedPool& pool,
                           const Recompute& recompute, TensorView out) {
  const LayerSaved saved = allocate_recomputed(pass, layer, kept, pool, recompute);
  const TraceSpan span = traced(pass, "recompute", "layer", layer);
  LayerSaves& saves = pass.lists.saves;
  saves.computed = {saves.kept.data() + saved.first_kept, saved.last_kept - saved.first_kept};
  decoder_layer_forward(pass, layer, saved, out);
  saves.computed = {};
  return saved;
}

void decoder_layer_backward(Pass& pass, int64_t layer, const LayerSaved& saved, TensorView d) {
  const TraceSpan whole = traced(pass, "layer backward", "layer", layer);
  const std::span<const SublayerContext> sublayers = pass.weights.layer(layer);
  for (size_t s = sublayers.size(); s-- > 0;) {
    if (!has_work(pass, sublayers[s])) continue;
    const TraceSpan span = traced(pass, sublayers[s].block->name, "layer", layer);
    sublayers[s].connector->backward(pass, sublayers[s], saved.parts[s], saved.states[s], d);
  }
}

namespace {

// Whether the layer's backward begins its turn itself.
bool begins_own_turn(const Pass& pass, int64_t layer) {
  return pass.dealt != nullptr &&
         std::ranges::any_of(pass.weights.layer(layer), [](const SublayerContext& sublayer) {
           return sublayer.block->exchanges_rows;
         });
}

}  // namespace

void backward_in_turn(Pass& pass, int64_t layer, const LayerSaved& saved, Turn turn, TensorView d) {
  if (!begins_own_turn(pass, layer)) turn.begin();
  pass.turn = &turn;
  decoder_layer_backward(pass, layer, saved, d);
  pass.turn = nullptr;
  turn.end();
}

}  // namespace strata::model
