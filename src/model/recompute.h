// Recompute: which of a layer's saved activations a training pass keeps; what it does not keep,
// backward makes again by the same kernels, so no choice changes a bit. A layer's input and its
// routing are always kept. Activations go by the field's names for them (the tags of Pass::save).
// A small value: copies share one table. Any thread.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/arena.h"

namespace strata::model {

class Recompute {
 public:
  static const Recompute kNone;  // every activation is kept
  static const Recompute kFull;  // none is

  constexpr Recompute() = default;
  // Keeps these tags (at most 64) in every layer.
  static Recompute keeping(std::vector<std::string> tags);
  // Keeps masks[layer], whose bit i is tags[i].
  static Recompute keeping(std::vector<std::string> tags, std::vector<uint64_t> masks);

  [[nodiscard]] bool keeps_all() const { return keeps_all_; }
  [[nodiscard]] bool keeps(int64_t layer, ScratchTag tag) const;
  friend bool operator==(const Recompute&, const Recompute&) = default;

 private:
  struct Table {
    std::vector<std::string> tags;
    std::vector<uint64_t> masks;  // of layers; empty: every tag in every layer
  };
  constexpr explicit Recompute(bool keeps_all) : keeps_all_(keeps_all) {}

  bool keeps_all_ = true;
  std::shared_ptr<const Table> table_;
};

inline constinit const Recompute Recompute::kNone{true};
inline constinit const Recompute Recompute::kFull{false};

// A policy of the field by its name, beside none and full: what each keeps is what MaxText's policy
// of that name keeps on the device (its configs/types.py), by our tags; tags that a model has none
// of do not matter.
struct RecomputePreset {
  std::string_view name;
  std::vector<std::string> tags;
};
std::span<const RecomputePreset> recompute_presets();

}  // namespace strata::model
