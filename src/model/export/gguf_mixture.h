// SPDX-License-Identifier: Apache-2.0
// Which type each tensor of a GGUF file has, by what the file mostly is ("q4_k_m", "q8_0", ...). Of
// K-quants the tensors that suffer most from rounding have more bits, as llama-quantize has them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf/quantise.h"
#include "model/config.h"

namespace strata::model {

// general.file_type of it.
uint32_t gguf_file_type(std::string_view type);

class GgufMixture {
 public:
  // `names` are those of all tensors in the file. Keeps no reference.
  GgufMixture(std::string_view type, const ModelConfig& config, std::span<const std::string> names);

  // The type of a tensor with these axes, as torch has them.
  [[nodiscard]] const GgufEncoding& encoding_for(std::string_view name,
                                                 const std::vector<int64_t>& dims) const;

 private:
  [[nodiscard]] std::string choose_plain(std::string_view name) const;
  [[nodiscard]] std::string choose_k(std::string_view name, int64_t columns) const;
  [[nodiscard]] std::string choose_value_like(std::string_view name) const;
  [[nodiscard]] bool has_more_bits(int64_t place, int64_t count) const;

  std::string type_;
  std::string base_;  // of most tensors
  int64_t num_layers_ = 0, num_experts_ = 0;
  bool is_tied_ = true;
  bool is_70b_ = false;                // Llama's and Qwen2's of 80 layers
  std::vector<int64_t> value_layers_;  // that have a tensor like attn_v, in order
};

}  // namespace strata::model
