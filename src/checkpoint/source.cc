// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/source.h"

#include <algorithm>

#include "base/check.h"
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/gguf/gguf_source.h"

namespace strata {

const CheckpointTensor* CheckpointSource::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void CheckpointSource::read_quantised_rows(const CheckpointTensor& tensor, int64_t, int64_t,
                                           std::byte*) const {
  CHECK(false, tensor.info.name);  // narrow_form says that there is none
}

std::vector<int64_t> CheckpointSource::read_integers(const CheckpointTensor& tensor,
                                                     int64_t first_element, int64_t count) const {
  const int bytes = tensor.info.integer_bytes();
  CHECK(bytes > 0, tensor.info.name, tensor.info.dtype_name);
  std::vector<int64_t> values(static_cast<size_t>(count));
  if (bytes == 8) {
    read_bytes(tensor, first_element * bytes, std::as_writable_bytes(std::span(values)));
    return values;
  }
  std::vector<int32_t> narrow(static_cast<size_t>(count));
  read_bytes(tensor, first_element * bytes, std::as_writable_bytes(std::span(narrow)));
  std::copy(narrow.begin(), narrow.end(), values.begin());
  return values;
}

void CheckpointSource::add(CheckpointTensor tensor) {
  by_name_.emplace(tensor.info.name, tensors_.size());
  tensors_.push_back(std::move(tensor));
}

void CheckpointSource::erase_if(const std::function<bool(const CheckpointTensor&)>& drop) {
  std::erase_if(tensors_, drop);
  by_name_.clear();
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].info.name, i);
}

NarrowBytes count_quantised_bytes(const CheckpointSource& source) {
  NarrowBytes bytes;
  for (const CheckpointTensor& tensor : source.tensors()) {
    const TensorInfo& info = tensor.info;
    if (!info.readable || info.dtype_name == dtype_name(info.dtype)) continue;
    bytes.stored += info.num_bytes();
    bytes.dequantised += info.shape.num_elements() * dtype_bytes(DType::kBF16);
  }
  return bytes;
}

std::unique_ptr<CheckpointSource> open_checkpoint(const std::string& path) {
  if (is_gguf(path)) return std::make_unique<GgufSource>(path);
  return std::make_unique<CheckpointDir>(path);
}

ModelTexts open_texts(const std::string& path) {
  return is_gguf(path) ? gguf_texts(path) : ModelTexts(path);
}

}  // namespace strata
