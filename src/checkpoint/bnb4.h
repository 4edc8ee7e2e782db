// SPDX-License-Identifier: Apache-2.0
// Weights in bitsandbytes' 4 bits (nf4, fp4), as QLoRA's checkpoints have them. Of a linear layer's
// "X.weight", of shape [N, K], there are
//   X.weight               U8, two codes a byte, the high four bits first, over the flat [N K]
//   X.weight.absmax        F32, of each block of `blocksize` flat elements
//   X.weight.quant_map     F32 [16], the value of each code
//   X.weight.quant_state.bitsandbytes__nf4 (or __fp4): U8, JSON of blocksize, dtype and shape
// and where absmax is itself in 8 bits (nested): absmax U8, X.weight.nested_absmax F32 of each
// nested_blocksize of them, X.weight.nested_quant_map F32 [256]; nested_offset is in the JSON:
//   absmax = f32(f32(map[code] * nested_absmax) + nested_offset)
//   value = rounded to dtype(f32(quant_map[code] * absmax))
// Source of the formulas: bitsandbytes functional.py (QuantState, dequantize_4bit).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "tensor/narrow.h"

namespace strata {

struct Bnb4 {
  std::string type;  // "nf4" or "fp4"
  std::array<float, 16> map{};
  int64_t block = 0;
  DType dtype = DType::kBF16;
  int64_t rows = 0, cols = 0;
  TensorInfo absmax;
  size_t absmax_shard = 0;
  // The tables of nested scales; empty where they are F32.
  std::vector<float> nested_map, nested_absmax;
  int64_t nested_block = 0;
  float offset = 0.0f;
  NarrowForm form = NarrowForm::kNone;  // that it may be kept in
};

// What a checkpoint has under a name: the tensor and its file, or nulls.
struct StoredTensorRef {
  const TensorInfo* info = nullptr;
  const SafetensorsFile* file = nullptr;
  size_t shard = 0;
};
using FindStored = std::function<StoredTensorRef(const std::string& name)>;

// The names of the tensors that belong to a weight, which leave the list of tensors.
std::vector<std::string> bnb4_part_names(std::string_view weight);
// Null when the weight has no state of bitsandbytes; an Error where that does not fit together.
std::shared_ptr<const Bnb4> read_bnb4_state(const TensorInfo& weight, const FindStored& find);

// Elements [first, first + count), in f32.
void read_bnb4_values(const Bnb4& state, const SafetensorsFile& weights, const TensorInfo& weight,
                      const SafetensorsFile& absmax, int64_t first, int64_t count, float* out);
// The first scale that the state's form does not hold (checkpoint/narrow_scale.h), or nothing; and
// rows in the form, an Error where there is such a scale.
std::string scan_bnb4_for_unrepresentable_scales(const Bnb4& state, const TensorInfo& weight,
                                                 const SafetensorsFile& absmax);
void read_quantised_rows_of_bnb4(const Bnb4& state, const SafetensorsFile& weights,
                                 const TensorInfo& weight, const SafetensorsFile& absmax,
                                 int64_t first_row, int64_t count, std::byte* out);

}  // namespace strata
