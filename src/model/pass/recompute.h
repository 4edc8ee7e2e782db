// SPDX-License-Identifier: Apache-2.0
// Recompute: which of a layer's saved activations a training pass keeps, in memory or in files
// (Backend::file_scratch); what it does not keep, backward recomputes by the same kernels, so no
// choice changes a bit. A layer's input and its routing are always kept, the input in either place.
// Activations go by the field's names for them (the tags of Pass::allocate_saved).
// A small value: copies share one table. Any thread.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/arena.h"

namespace strata::model {

constexpr ScratchTag kLayerInputTag = "decoder_layer_input";

class Recompute {
 public:
  static const Recompute kNone;  // every activation is kept
  static const Recompute kFull;  // none is

  constexpr Recompute() = default;
  // Keeps these tags (at most 64) in every layer.
  static Recompute keeping(std::vector<std::string> tags);
  // Keeps masks[layer], whose bit i is tags[i], and of these offloaded[layer] in files; an empty
  // list keeps every tag in every layer, or none of them in files.
  static Recompute keeping(std::vector<std::string> tags, std::vector<uint64_t> masks,
                           std::vector<uint64_t> offloaded = {});
  // Keeps both in every layer, the latter in files.
  static Recompute with_offload(const std::vector<std::string>& memory,
                                const std::vector<std::string>& files);
  // Keeps layers' inputs alone, in files.
  static Recompute offloading_layer_inputs() {
    return with_offload({}, {std::string(kLayerInputTag)});
  }

  // In memory.
  [[nodiscard]] bool keeps_all() const { return keeps_all_; }
  // In memory or in files.
  [[nodiscard]] bool keeps(int64_t layer, ScratchTag tag) const;
  [[nodiscard]] bool offloads(int64_t layer, ScratchTag tag) const;
  [[nodiscard]] bool offloads_any() const;
  friend bool operator==(const Recompute&, const Recompute&) = default;

 private:
  struct Table {
    std::vector<std::string> tags;
    std::vector<uint64_t> masks;      // of layers; empty: every tag in every layer
    std::vector<uint64_t> offloaded;  // likewise, of these; empty: none, one: of every layer
  };
  constexpr explicit Recompute(bool keeps_all) : keeps_all_(keeps_all) {}
  [[nodiscard]] uint64_t bit_of(ScratchTag tag) const;  // in the masks; 0: none

  bool keeps_all_ = true;
  std::shared_ptr<const Table> table_;
};

// Where a pass in a pipeline recomputes what it does not keep; the two switches of a stage in
// MaxText. As a region of its own a layer is recomputed just before its backward, alone. As a
// region the whole iteration (a micro-batch's way through a stage) is recomputed before the
// stage's backward; of regions in one another, the iteration makes the layers' inputs and each
// layer then itself. Not in regions, everything is kept. No choice changes a bit.
struct RecomputeRegions {
  bool iterations = false;
  bool layers = true;
  bool keeps_layer_inputs = true;  // of iterations; else they are recomputed, but for the first one
  [[nodiscard]] bool any() const { return iterations || layers; }
  // Whether something is recomputed before a stage's backward, and not layer by layer.
  [[nodiscard]] bool makes_stage() const { return iterations && !(layers && keeps_layer_inputs); }
  friend bool operator==(const RecomputeRegions&, const RecomputeRegions&) = default;
};

inline constinit const Recompute Recompute::kNone{true};
inline constinit const Recompute Recompute::kFull{false};

// A policy of the field by its name, besides none and full: what each keeps in memory and in files
// is what MaxText's policy of that name keeps on the device and offloads (its configs/types.py), by
// our tags; tags that a model has none of do not matter.
struct RecomputePreset {
  std::string_view name;
  std::vector<std::string> tags;
  std::vector<std::string> offloaded = {};
  [[nodiscard]] Recompute value() const { return Recompute::with_offload(tags, offloaded); }
};
std::span<const RecomputePreset> recompute_presets();

}  // namespace strata::model
