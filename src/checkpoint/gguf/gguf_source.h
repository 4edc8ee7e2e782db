// SPDX-License-Identifier: Apache-2.0
// GgufSource: a model in GGUF as a source of weights under Hugging Face names. Tensors of F32, F16
// and BF16 are read as what they are; the others are dequantised to F32 and saved as BF16. Small
// files are made of the keys. Any thread may read.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/gguf/architecture.h"
#include "checkpoint/source.h"

namespace strata {

class GgufSource final : public CheckpointSource {
 public:
  explicit GgufSource(const std::string& path);

  void read(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
            void* raw_out) const override;
  void read_f32(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                float* out) const override;
  [[nodiscard]] NarrowForm narrow_form(const CheckpointTensor& tensor) const override;
  void read_quantised_rows(const CheckpointTensor& tensor, int64_t first_row, int64_t count,
                           std::byte* out) const override;
  void read_bytes(const CheckpointTensor& tensor, int64_t first_byte,
                  std::span<std::byte> out) const override;
  [[nodiscard]] CheckpointLayout layout() const override;
  [[nodiscard]] std::string readable_types() const override { return readable_gguf_types(); }

 private:
  [[nodiscard]] const GgufWeight& weight_of(const CheckpointTensor& tensor) const;
  // Error where it is of a type that nothing reads.
  [[nodiscard]] const GgufWeight& readable_weight_of(const CheckpointTensor& tensor) const;
  void read_whole_rows(const GgufWeight& weight, int64_t first_row, int64_t count,
                       std::byte* out) const;
  void read_dequantised_rows(const GgufWeight& weight, int64_t first_row, int64_t count,
                             float* out) const;
  void read_raw_rows(const GgufWeight& weight, int64_t first_row, int64_t count,
                     std::byte* out) const;
  void read_parts_of_rows(const GgufWeight& weight, int64_t first_element, int64_t count,
                          std::byte* out) const;
  void read_kv_b_rows(const GgufWeight& weight, int64_t first_row, int64_t count, float* out) const;
  // Rows of a tensor as they are stored.
  void read_stored_rows(const GgufModel::Tensor& tensor, int64_t first_row, int64_t count,
                        std::byte* out) const;
  // Rows of the stored tensor, of which the weight has its columns; `row` has memory for one.
  void read_columns(const GgufWeight& weight, int64_t first_row, int64_t count,
                    std::span<std::byte> row, std::byte* out) const;
  void dequantise_columns(const GgufWeight& weight, int64_t first_row, int64_t count,
                          std::span<float> row, float* out) const;
  // `scale`: of NVFP4, besides the blocks'.
  void dequantise_rows(const GgufModel::Tensor& tensor, int64_t first_row, int64_t count,
                       float scale, float* out) const;
  [[noreturn]] void fail_non_finite_scale(const GgufModel::Tensor& tensor, int64_t block) const;

  GgufModel model_;
  std::vector<GgufWeight> weights_;  // as tensors()
};

// The small files of the model at the path. The tokenizer's is made when it is asked for.
ModelTexts gguf_texts(const std::string& path);

}  // namespace strata
