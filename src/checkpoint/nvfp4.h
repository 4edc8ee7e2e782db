// SPDX-License-Identifier: Apache-2.0
// Weights in NVFP4: e2m1 of 4 bits, of each 16 columns a scale in e4m3, and one of the tensor:
//   value = f32(e2m1 * f32(e4m3 * t)), or with e4m3 / t where the tensor's scale divides
// In compressed-tensors' form a matrix [N, K] "X.weight" is
//   X.weight_packed        U8 [N, K / 2], the low four bits first
//   X.weight_scale         F8_E4M3 [N, K / 16]
//   X.weight_global_scale  F32, one element, which divides
// and in ModelOpt's
//   X.weight, X.weight_scale, the same; X.weight_scale_2, F32, one element, which multiplies.
// Scales of what they multiply (X.input_scale, X.input_global_scale, X.k_scale ..) are no part of
// the weights. Sources of the formulas: compressed-tensors' nvfp4 compressor; ModelOpt's
// NVFP4QTensor.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/bnb4.h"
#include "checkpoint/safetensors.h"

namespace strata {

struct Nvfp4Scale {
  float t = 1.0f;
  bool divides = false;

  // The scale of 16 columns.
  [[nodiscard]] float scale_of(float e4m3) const { return divides ? e4m3 / t : e4m3 * t; }
  // The super fields of NarrowScale::kE4m3 that give the bits of scale_of() for every e4m3; nothing
  // where there are no such numbers, or where weights would be too small or large for products.
  [[nodiscard]] std::optional<std::array<float, 2>> as_sum() const;
};

struct Nvfp4 {
  int64_t rows = 0, cols = 0;
  Nvfp4Scale tensor_scale;
  TensorInfo scale;  // of groups of columns
  size_t scale_shard = 0;
  NarrowForm form = NarrowForm::kNone;  // that it may be kept in
  std::array<float, 2> sum{};           // tensor_scale.as_sum(), of one that may
};

// What the weight is called: "X.weight" of "X.weight_packed".
std::string nvfp4_weight_name(const TensorInfo& packed);
// The names of the tensors that belong to it and leave the list of tensors.
std::vector<std::string> nvfp4_part_names(const TensorInfo& packed);
// Null where the tensor is no weight in NVFP4; an Error where its parts do not fit together.
std::shared_ptr<const Nvfp4> read_nvfp4_state(const TensorInfo& packed, const FindStored& find);

// Elements [first, first + count), in f32.
void read_nvfp4_values(const Nvfp4& state, const SafetensorsFile& weights, const TensorInfo& weight,
                       const SafetensorsFile& scales, int64_t first, int64_t count, float* out);
// The first row with a scale that the form does not hold (below zero, or no number), or nothing;
// and rows in the form, an Error where there is such a scale.
std::string scan_nvfp4_for_unrepresentable_scales(const Nvfp4& state,
                                                  const SafetensorsFile& scales);
void read_quantised_rows_of_nvfp4(const Nvfp4& state, const SafetensorsFile& weights,
                                  const TensorInfo& weight, const SafetensorsFile& scales,
                                  int64_t first_row, int64_t count, std::byte* out);

// The super fields of a row in NarrowForm::kNvfp4.
void fill_nvfp4_super_fields(const std::array<float, 2>& sum, std::span<std::byte> out);

}  // namespace strata
