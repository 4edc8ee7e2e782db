// SPDX-License-Identifier: Apache-2.0
// The scales that GGUF has next to tensors in NVFP4, and that multiply those of blocks: of
// "X.weight" "X.scale" (some writers: "X.weight.scale"), F32 of one element, or of one for each
// expert of a stack; without one it is 1. "X.input_scale", of what X multiplies, takes no part.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>

#include "checkpoint/gguf/gguf_model.h"

namespace strata {

class Nvfp4Scales {
 public:
  // Borrows the model.
  explicit Nvfp4Scales(const GgufModel& model);

  // Whether a tensor is a scale of one in NVFP4.
  [[nodiscard]] bool is_scale(std::string_view name) const;
  // An Error where the scale of the tensor has another shape, or is no finite number.
  [[nodiscard]] float read_scale(const GgufModel::Tensor& tensor, int64_t expert) const;
  [[nodiscard]] bool has_scale(const GgufModel::Tensor& tensor) const;

 private:
  [[nodiscard]] const GgufModel::Tensor* find_scale(const GgufModel::Tensor& tensor) const;

  const GgufModel& model_;
  std::unordered_map<std::string, GgufModel::Tensor> by_name_;  // what may be a scale
};

}  // namespace strata
