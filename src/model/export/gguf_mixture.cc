// SPDX-License-Identifier: Apache-2.0
// Source: llama.cpp's llama-quant.cpp (llama_tensor_get_type_impl, tensor_type_fallback).
#include "model/export/gguf_mixture.h"

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gqa.h"

namespace strata::model {
namespace {

struct KRow {
  std::string_view type, base;
  uint32_t file_type;
};
constexpr KRow kMixtures[] = {{"q4_k_m", "q4_k", 15}, {"q5_k_m", "q5_k", 17}, {"q6_k", "q6_k", 18}};

// What stands in for a type in rows that its blocks do not divide.
struct FallbackRow {
  std::string_view type, instead;
};
constexpr FallbackRow kFallbacks[] = {{"q4_k", "q5_0"}, {"q5_k", "q5_1"}, {"q6_k", "q8_0"}};

const KRow* find_mixture(std::string_view type) {
  const auto* found = std::ranges::find(kMixtures, type, &KRow::type);
  return found == std::end(kMixtures) ? nullptr : found;
}

bool has(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

bool is_value_like(std::string_view name) {
  return has(name, "attn_v.weight") || has(name, "attn_qkv.weight") ||
         has(name, "attn_kv_b.weight");
}

// The layer of a tensor named "blk.N.rest"; -1 for other names.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  int64_t layer = -1;
  if (name.starts_with(kPrefix))
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

// Whether llama.cpp's converter keeps the tensor in f32.
bool is_kept_f32(std::string_view stored, size_t num_dims) {
  return num_dims < 2 || has(stored, "norm") || has(stored, "ffn_gate_inp") ||
         has(stored, "ssm_conv1d") || stored.ends_with(".bias");
}

// Small next to the table of embeddings that it is added to: llama-quantize leaves it as it is.
bool keeps_16_bits(std::string_view stored) { return stored == "per_layer_model_proj.weight"; }

bool is_end(std::string_view name) {
  return name == "token_embd.weight" || name == "output.weight";
}

int64_t count_experts(const ModelConfig& config) {
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const auto* moe = config.find_block_config<MoeConfig>(layer, kMoe);
    if (moe != nullptr) return moe->num_experts;
  }
  return 0;
}

// What llama.cpp calls 70B: its eight query heads of a value head make values few and important.
bool is_like_70b(const ModelConfig& config) {
  constexpr int64_t kLayers = 80;
  if (config.num_layers() != kLayers) return false;
  if (config.family == "qwen2") return true;
  const auto* gqa = config.find_block_config<GqaConfig>(0, kGqa);
  const bool is_llama = config.family == "llama" || config.family == "mistral";
  return is_llama && gqa != nullptr && gqa->num_heads != gqa->num_kv_heads;
}

}  // namespace

uint32_t gguf_file_type(std::string_view type) {
  const KRow* mixture = find_mixture(type);
  return mixture != nullptr ? mixture->file_type : find_gguf_encoding(type)->file_type;
}

GgufMixture::GgufMixture(std::string_view type, const ModelConfig& config,
                         std::span<const std::string> names)
    : type_(type),
      base_(type),
      num_layers_(config.num_layers()),
      num_experts_(count_experts(config)),
      is_70b_(is_like_70b(config)) {
  if (const KRow* mixture = find_mixture(type)) base_ = mixture->base;
  for (const std::string& name : names) {
    if (name == "output.weight") is_tied_ = false;
    if (is_value_like(name)) value_layers_.push_back(layer_of(name));
  }
  std::ranges::sort(value_layers_);
}

const GgufEncoding& GgufMixture::encoding_for(std::string_view name,
                                              const std::vector<int64_t>& dims) const {
  if (is_kept_f32(name, dims.size())) return *find_gguf_encoding("f32");
  const bool is_wide = type_ == "f32" || type_ == "f16" || type_ == "bf16";
  if (keeps_16_bits(name) && !is_wide) return *find_gguf_encoding("bf16");
  std::string chosen =
      find_mixture(type_) == nullptr ? choose_plain(name) : choose_k(name, dims.back());
  for (const FallbackRow& row : kFallbacks) {
    const bool fits = dims.back() % find_gguf_encoding(chosen)->type->block_elements == 0;
    if (!fits && chosen == row.type) chosen = row.instead;
  }
  const GgufEncoding& encoding = *find_gguf_encoding(chosen);
  return dims.back() % encoding.type->block_elements == 0 ? encoding : *find_gguf_encoding("f16");
}

std::string GgufMixture::choose_plain(std::string_view name) const {
  const bool is_narrow = type_ == "q4_0" || type_ == "mxfp4";
  return is_end(name) && is_narrow ? "q8_0" : type_;
}

// The first and last eighth of the layers, and every third between them.
bool GgufMixture::has_more_bits(int64_t place, int64_t count) const {
  const int64_t eighth = count / 8;
  return base_ != "q6_k" && (place < eighth || place >= 7 * count / 8 || (place - eighth) % 3 == 2);
}

std::string GgufMixture::choose_value_like(std::string_view name) const {
  constexpr int64_t kEight = 8;  // experts, as Mixtral has them
  if (num_experts_ == kEight) return "q8_0";
  const auto place = std::ranges::lower_bound(value_layers_, layer_of(name));
  if (has_more_bits(place - value_layers_.begin(), std::ssize(value_layers_))) return "q6_k";
  return is_70b_ && base_ == "q4_k" ? "q5_k" : base_;
}

std::string GgufMixture::choose_k(std::string_view name, int64_t columns) const {
  constexpr int64_t kEight = 8;
  if (name == "output.weight" || (is_tied_ && name == "token_embd.weight")) {
    return columns % find_gguf_encoding(base_)->type->block_elements == 0 ? "q6_k" : "q8_0";
  }
  if (is_value_like(name)) return choose_value_like(name);
  if (has(name, "attn_k.weight") && num_experts_ == kEight) return "q8_0";
  if (has(name, "ffn_down") && has_more_bits(layer_of(name), num_layers_)) return "q6_k";
  if (has(name, "attn_output.weight") && num_experts_ == kEight && base_ == "q4_k") return "q5_k";
  return base_;
}

}  // namespace strata::model
