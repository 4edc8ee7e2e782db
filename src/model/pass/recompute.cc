// SPDX-License-Identifier: Apache-2.0
#include "model/pass/recompute.h"

#include <algorithm>

#include "base/check.h"

namespace strata::model {
namespace {

using Tags = std::vector<std::string>;

Tags operator+(Tags a, const Tags& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The field has one name for what several of our blocks make.
const Tags kQkv = {"query_proj",     "key_proj",     "value_proj",      "kv_proj",
                   "query_wa_proj",  "kv_wa_proj",   "compressor_proj", "indexer",
                   "delta_qkv_proj", "delta_z_proj", "delta_gates",     "conv_proj",
                   "lora_h"};
const Tags kOutput = {"out_proj", "branch", "hyper_connection"};
const Tags kContext = {"context", "attention_out", "delta_context"};
const Tags kMlp = {"mlpwi_0", "mlpwi_1", "moe_mlpwi_0", "moe_mlpwi_1", "shared_gate"};

}  // namespace

Recompute Recompute::keeping(std::vector<std::string> tags) { return keeping(std::move(tags), {}); }

Recompute Recompute::keeping(std::vector<std::string> tags, std::vector<uint64_t> masks,
                             std::vector<uint64_t> offloaded) {
  CHECK(tags.size() <= 64, tags.size());
  Recompute out(false);
  out.table_ =
      std::make_shared<const Table>(Table{std::move(tags), std::move(masks), std::move(offloaded)});
  return out;
}

Recompute Recompute::with_offload(const std::vector<std::string>& memory,
                                  const std::vector<std::string>& files) {
  if (files.empty()) return keeping(memory);
  CHECK(files.size() < 64, files.size());
  return keeping(files + memory, {}, {(uint64_t{1} << files.size()) - 1});
}

uint64_t Recompute::bit_of(ScratchTag tag) const {
  if (table_ == nullptr) return 0;
  const auto found = std::find(table_->tags.begin(), table_->tags.end(), tag);
  return found == table_->tags.end() ? 0 : uint64_t{1} << (found - table_->tags.begin());
}

bool Recompute::keeps(int64_t layer, ScratchTag tag) const {
  if (table_ == nullptr || tag == kLayerInputTag) return keeps_all_ || tag == kLayerInputTag;
  const uint64_t bit = bit_of(tag);
  if (table_->masks.empty()) return bit != 0;
  return (table_->masks.at(static_cast<size_t>(layer)) & bit) != 0;
}

bool Recompute::offloads(int64_t layer, ScratchTag tag) const {
  if (table_ == nullptr || table_->offloaded.empty() || !keeps(layer, tag)) return false;
  const std::vector<uint64_t>& masks = table_->offloaded;
  return ((masks.size() == 1 ? masks[0] : masks.at(static_cast<size_t>(layer))) & bit_of(tag)) != 0;
}

bool Recompute::offloads_any() const {
  return table_ != nullptr && std::any_of(table_->offloaded.begin(), table_->offloaded.end(),
                                          [](uint64_t mask) { return mask != 0; });
}

std::span<const RecomputePreset> recompute_presets() {
  static const std::vector<RecomputePreset> presets = {
      {"minimal", kQkv + kOutput + kMlp},
      {"minimal_with_context", kQkv + kOutput + kMlp + kContext},
      {"save_dot_with_context_except_mlp", kQkv + kOutput + kContext},
      {"save_dot_except_mlp", kQkv + kOutput},
      // Besides the above the MLP's output: here the next layer's input, which is always kept.
      {"save_dot_except_mlpwi", kQkv + kOutput},
      {"save_qkv_proj", kQkv},
      {"save_out_proj", kOutput},
      {"qkv_proj_offloaded", {}, kQkv},
      {"minimal_offloaded", {}, kQkv + kOutput + kMlp},
  };
  return presets;
}

}  // namespace strata::model
