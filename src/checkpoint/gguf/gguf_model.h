// SPDX-License-Identifier: Apache-2.0
// GgufModel: the parts of one model in GGUF, one file or a split one, opened and checked together:
// keys, and tensors with the file that each is in.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/gguf/gguf_file.h"

namespace strata {

class GgufModel {
 public:
  struct Tensor {
    const GgufTensor* info = nullptr;
    size_t file = 0;  // into files()
  };

  // `path`: the file, any part of a split one, or a folder that holds the files of one model.
  explicit GgufModel(const std::string& path);

  // The keys of the first part, which alone has all of them.
  [[nodiscard]] const GgufKeys& keys() const { return files_.front().keys(); }
  [[nodiscard]] std::span<const GgufFile> files() const { return files_; }
  [[nodiscard]] std::span<const Tensor> tensors() const { return tensors_; }
  [[nodiscard]] const GgufTensor* find(std::string_view name) const;  // null when not there
  // The architecture's name; keys of its own begin with it and a dot.
  [[nodiscard]] const std::string& architecture() const { return architecture_; }

 private:
  void open_parts(const std::string& path, int64_t count);
  void index_tensors();

  std::vector<GgufFile> files_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
  std::string architecture_;
};

// Whether what is at the path is to be read as a model in GGUF: a file of that kind, or a folder
// with one and without safetensors.
bool is_gguf(const std::string& path);

}  // namespace strata
