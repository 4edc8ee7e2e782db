// SPDX-License-Identifier: Apache-2.0
// Experts as files of gpt-oss and of Llama 4 hold them: of each layer all experts in one tensor,
// gate and up together. Files of bf16 have them transposed, against what else holds matrices:
//   X.gate_up_proj [E, inputs, 2 outputs], X.gate_up_proj_bias [E, 2 outputs],
//   X.down_proj [E, inputs, outputs], X.down_proj_bias [E, outputs]
// gpt-oss with gate and up in alternating columns; Llama 4, whose X ends with
// "feed_forward.experts", with the columns of gate and then those of up, and no biases. gpt-oss'
// MXFP4 has [E, outputs, inputs] with gate and up in alternating rows (X.gate_up_proj_blocks and
// _scales, checkpoint/block_scales.h). They are seen as matrices and biases of one expert and one
// projection each, "X.3.gate_proj.weight" [outputs, inputs]; and such matrices are written as whole
// tensors in the form of bf16 files. E experts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/function_ref.h"
#include "checkpoint/safetensors_writer.h"

namespace strata {

struct CheckpointTensor;
struct CheckpointLayout;

// Which elements of a tensor are those of one expert's matrix [outputs, inputs], or bias (1 input).
struct ExpertPart {
  std::shared_ptr<const CheckpointTensor> whole;
  int64_t expert = 0;
  int64_t first = 0;  // of the whole's outputs, and then each step-th
  int64_t step = 1;
  int64_t width = 0;        // of the whole's outputs
  int64_t outputs = 0;      // of the part
  int64_t inputs = 1;       // of both
  bool transposed = false;  // the whole is [E, inputs, width]; else [E, width, inputs]

  // Where a row of the part is among the whole's, in one that is not transposed.
  [[nodiscard]] int64_t row_in_whole(int64_t row) const {
    return expert * width + first + step * row;
  }
};

// The name of a layer's experts, "model.layers.3.mlp.experts", where the tensor is one that files
// pack; empty for any other. It is packed where the experts' "X.gate_up_proj_bias" is there, too,
// which other models' tensors of these names lack, or where the experts have Llama 4's name.
std::string_view experts_of_packed_tensor(std::string_view name);
bool have_llama4_name(std::string_view experts);
inline std::string packed_bias_name(std::string_view experts) {
  return std::string(experts) + ".gate_up_proj_bias";
}
// The parts of a packed tensor, expert by expert; none where its shape is not one of such.
std::vector<CheckpointTensor> split_into_experts(const CheckpointTensor& tensor);

// Reads elements [first, first + count) of a part, of so many bytes each; `read` reads them of the
// whole.
using ReadElements = FunctionRef<void(int64_t first, int64_t count, std::byte* out)>;
void read_expert_part(const ExpertPart& part, int64_t element_bytes, int64_t first, int64_t count,
                      ReadElements read, std::byte* out);
// Rows of so many bytes of one that is not transposed; `read` reads rows of the whole.
void read_expert_rows(const ExpertPart& part, int64_t row_bytes, int64_t first_row, int64_t count,
                      ReadElements read, std::byte* out);

// The tensor that a part of this name is packed in; empty where it is the name of none.
std::string packed_tensor_of(std::string_view part);

// Makes whole tensors of matrices and biases of single experts, as they come in.
class ExpertPacker {
 public:
  // Replaces the entries of parts in the layout, each whole tensor in the place of its first.
  explicit ExpertPacker(CheckpointLayout& layout);

  // The parts of a whole tensor in the order in which their data is wanted; none of another.
  [[nodiscard]] std::span<const TensorDecl> parts_of(std::string_view whole) const;
  // The part's declaration; null where the name is not of one.
  [[nodiscard]] const TensorDecl* find_part(std::string_view name) const;
  // The next bytes of a part. Calls write(whole tensor, its next bytes) with what is complete.
  void append(std::string_view name, std::span<const std::byte> bytes,
              FunctionRef<void(std::string_view, std::span<const std::byte>)> write);

 private:
  struct Whole {
    std::string name;
    std::vector<TensorDecl> parts;
    int64_t num_parts = 1;              // of each expert
    bool alternates = true;             // the outputs of its parts
    int64_t outputs = 0, inputs = 1;    // of a part
    std::vector<std::byte> bytes = {};  // of the expert's parts so far, one behind the other
  };
  [[nodiscard]] static std::vector<std::byte> packed_bytes(const Whole& whole);

  std::vector<Whole> wholes_;
  std::unordered_map<std::string, size_t> by_whole_, by_part_;
};

}  // namespace strata
