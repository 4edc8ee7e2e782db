// SPDX-License-Identifier: Apache-2.0
// Nf4Source: a checkpoint some of whose matrices are in nf4 (checkpoint/nf4.h), which they are not
// in its files: they are quantised when they are read. Codes and scales are those of bitsandbytes
// for the values in the file, without double quantisation, and so is what is read as f32, rounded
// to the type that the file has. All else is the checkpoint's. Any thread may read.
#pragma once
#include <memory>
#include <set>
#include <string>

#include "checkpoint/source.h"

namespace strata {

class Nf4Source final : public CheckpointSource {
 public:
  // `names`: of matrices in F32, F16 or BF16 that `base` has.
  Nf4Source(std::unique_ptr<CheckpointSource> base, const std::set<std::string>& names);

  // Elements of a quantised matrix come as f32.
  void read(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
            void* raw_out) const override;
  void read_f32(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                float* out) const override;
  // kNf4 of a matrix that is quantised and whose rows are whole blocks.
  [[nodiscard]] NarrowForm narrow_form(const CheckpointTensor& tensor) const override;
  void read_quantised_rows(const CheckpointTensor& tensor, int64_t first_row, int64_t count,
                           std::byte* out) const override;
  // Nothing of a matrix that is quantised: read_quantised_rows finds it.
  [[nodiscard]] std::string scan_for_unrepresentable_values(const CheckpointTensor& tensor,
                                                            bool codes) const override;
  // Reads the files' own bytes.
  void read_bytes(const CheckpointTensor& tensor, int64_t first_byte,
                  std::span<std::byte> out) const override;
  [[nodiscard]] CheckpointLayout layout() const override { return base_->layout(); }
  [[nodiscard]] std::string readable_types() const override { return base_->readable_types(); }

 private:
  [[nodiscard]] const CheckpointTensor& in_base(const CheckpointTensor& tensor) const;
  [[nodiscard]] bool is_quantised(const CheckpointTensor& tensor) const;
  // In f32, as they are in the files.
  [[nodiscard]] std::vector<float> read_from_base(const CheckpointTensor& tensor,
                                                  int64_t first_element, int64_t count) const;
  // The values that the codes of whole blocks stand for. Error where one of them is not finite.
  [[nodiscard]] std::vector<float> read_rounded_blocks(const CheckpointTensor& tensor,
                                                       int64_t first_element, int64_t count) const;

  std::unique_ptr<CheckpointSource> base_;
  std::set<std::string> quantised_;
};

}  // namespace strata
