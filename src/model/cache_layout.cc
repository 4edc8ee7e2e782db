#include "model/cache_layout.h"

#include <algorithm>
#include <numeric>

#include "backend/arena.h"
#include "base/check.h"

namespace strata::model {
namespace {

CacheSpec spec_of(const Sublayer& sublayer, DType dtype) {
  const CacheSpec spec = sublayer.block.ops().cache(sublayer.block.config(), dtype);
  CHECK(spec.ratio >= 1 && spec.entry_bytes >= 0 && spec.sequence_bytes >= 0, spec.ratio,
        spec.entry_bytes, spec.sequence_bytes);
  return spec;
}

}  // namespace

CacheLayout::CacheLayout(const ModelConfig& config, DType dtype, int64_t page_size) {
  int64_t multiple = 1;
  bool reads_all = false;
  std::vector<LayerConfig> layers = config.layers;
  if (config.use_mtp) layers.push_back(*config.mtp_layer);
  for (const LayerConfig& layer : layers) {
    for (const Sublayer& sublayer : layer) {
      const CacheSpec spec = spec_of(sublayer, dtype);
      multiple = std::lcm(multiple, spec.ratio);
      if (spec.entry_bytes == 0) continue;
      reads_all = reads_all || spec.window == 0;
      window_ = std::max(window_, spec.window);
    }
  }
  if (reads_all) window_ = 0;
  page_size_ = (page_size + multiple - 1) / multiple * multiple;
  for (const LayerConfig& layer : layers) {
    std::vector<CachePlace>& places = places_.emplace_back();
    for (const Sublayer& sublayer : layer) {
      const CacheSpec spec = spec_of(sublayer, dtype);
      places.push_back({.page_offset = page_bytes_, .state_offset = state_bytes_});
      page_bytes_ += page_size_ / spec.ratio * spec.entry_bytes;
      state_bytes_ += Arena::aligned(spec.sequence_bytes);
    }
  }
}

}  // namespace strata::model
