// SPDX-License-Identifier: Apache-2.0
// CheckpointSource: where the weights of a model come from, seen as one list of named tensors under
// Hugging Face's names, and the model's small files. What it is (a directory of safetensors, a file
// in GGUF) is found out in one place, open_checkpoint. Any thread may read.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/model_texts.h"
#include "checkpoint/block_scales.h"
#include "checkpoint/packed_experts.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "tensor/narrow.h"

namespace strata {

struct Bnb4;   // checkpoint/bnb4.h
struct Nvfp4;  // checkpoint/nvfp4.h

struct CheckpointTensor {
  TensorInfo info;
  size_t shard = 0;  // into shards()
  // What a tensor stored in few bits has; info has the dtype that it is read as, and the shape of
  // its elements.
  struct Scaled {
    BlockFormat format;
    TensorInfo scale;
    size_t shard = 0;  // of the scale
  };
  std::optional<Scaled> scaled = {};
  std::shared_ptr<const Bnb4> bnb4 = {};    // the same of bitsandbytes' 4 bits
  std::shared_ptr<const Nvfp4> nvfp4 = {};  // and of NVFP4
  std::optional<ExpertPart> packed = {};    // of one expert's matrix in a tensor of all experts
};

// What a saver must know of where the weights came from.
struct CheckpointLayout {
  struct Entry {
    TensorDecl tensor;
    std::string shard;  // file name: "model-00001-of-00002.safetensors"
  };
  std::vector<Entry> entries;
  bool indexed = false;        // there is an index; otherwise the one file is model.safetensors
  bool packs_experts = false;  // files hold experts as checkpoint/packed_experts.h says
  // The index's "metadata" but total_size, as pairs of key and raw JSON value.
  std::vector<std::pair<std::string, std::string>> index_metadata = {};
};

class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  CheckpointSource(const CheckpointSource&) = delete;
  CheckpointSource& operator=(const CheckpointSource&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  // File by file (by name), and in the order of the file within one.
  [[nodiscard]] std::span<const CheckpointTensor> tensors() const { return tensors_; }
  [[nodiscard]] const CheckpointTensor* find(std::string_view name) const;  // null when not there
  [[nodiscard]] std::span<const std::string> shards() const { return shard_names_; }

  // Copies `count` elements from `first_element` on, in the tensor's dtype, to raw_out. An Error
  // when the tensor is not readable.
  virtual void read(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                    void* raw_out) const = 0;
  // Reads them widened to f32; exact for every dtype.
  virtual void read_f32(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                        float* out) const = 0;
  // The form of few bits in which a matrix may be kept without another rounding than bf16's, and
  // rows [first_row, first_row + count) in it (tensor/narrow.h), leading axes flattened. kNone: it
  // is read as what its dtype says.
  [[nodiscard]] virtual NarrowForm narrow_form(const CheckpointTensor&) const {
    return NarrowForm::kNone;
  }
  virtual void read_quantised_rows(const CheckpointTensor& tensor, int64_t first_row, int64_t count,
                                   std::byte* out) const;
  // What of a tensor that has a form the form does not hold, so that read_quantised_rows fails: the
  // first such scale and, where asked for, code. Reads all of them; nothing where it holds them, or
  // where what it does not hold cannot be dequantised either.
  [[nodiscard]] virtual std::string scan_for_unrepresentable_values(const CheckpointTensor&,
                                                                    bool /*codes*/) const {
    return {};
  }
  // The bytes of a tensor as stored, from `first_byte` on; of what has none of its own, those of
  // its elements.
  virtual void read_bytes(const CheckpointTensor& tensor, int64_t first_byte,
                          std::span<std::byte> out) const = 0;
  // Elements of a tensor of whole numbers.
  [[nodiscard]] std::vector<int64_t> read_integers(const CheckpointTensor& tensor,
                                                   int64_t first_element, int64_t count) const;
  // The layout of all tensors that can be read, and of those of whole numbers, with the types to
  // save them in; a saver erases the entries that it does not write.
  [[nodiscard]] virtual CheckpointLayout layout() const = 0;
  // The types that can be read, for messages.
  [[nodiscard]] virtual std::string readable_types() const { return "F32, F16 or BF16"; }

 protected:
  explicit CheckpointSource(std::string path) : path_(std::move(path)) {}
  // The first of equal names is the one that is found.
  void add(CheckpointTensor tensor);
  // Drops tensors, which does not move the others' order.
  void erase_if(const std::function<bool(const CheckpointTensor&)>& drop);

  std::string path_;
  std::vector<std::string> shard_names_;
  std::vector<CheckpointTensor> tensors_;

 private:
  std::unordered_map<std::string, size_t> by_name_;
};

// Bytes of the tensors that are stored in few bits, and at least so many of memory that they take
// once they are dequantised: two of each element. Both 0 where there are none.
struct NarrowBytes {
  int64_t stored = 0;
  int64_t dequantised = 0;
};
NarrowBytes count_quantised_bytes(const CheckpointSource& source);

// What is at a path. Error{kNotFound} where there is no model.
std::unique_ptr<CheckpointSource> open_checkpoint(const std::string& path);
// Its small files alone, without a look at the weights.
ModelTexts open_texts(const std::string& path);

}  // namespace strata
