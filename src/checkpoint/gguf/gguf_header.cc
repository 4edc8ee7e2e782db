// SPDX-License-Identifier: Apache-2.0
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#include "checkpoint/gguf/gguf_header.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace strata {
namespace {

enum ValueType : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9 };

template <typename T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void put_text(std::string& to, std::string_view text) {
  put(to, static_cast<uint64_t>(text.size()));
  to.append(text);
}

int64_t aligned(int64_t bytes) {
  constexpr int64_t kTo = GgufHeader::kAlignment;
  return (bytes + kTo - 1) / kTo * kTo;
}

void put_tensor_info(std::string& to, const GgufHeader::Tensor& tensor) {
  put_text(to, tensor.name);
  put(to, static_cast<uint32_t>(tensor.dims.size()));
  for (size_t i = tensor.dims.size(); i-- > 0;) put(to, static_cast<uint64_t>(tensor.dims[i]));
  put(to, tensor.type->id);
  put(to, static_cast<uint64_t>(tensor.offset));
}

}  // namespace

void GgufHeader::add_key(std::string_view name, uint32_t type) {
  put_text(keys_, name);
  put(keys_, type);
  ++num_keys_;
}

void GgufHeader::begin_list(std::string_view name, uint32_t type, size_t count) {
  add_key(name, kArray);
  put(keys_, type);
  put(keys_, static_cast<uint64_t>(count));
}

void GgufHeader::add_integer(std::string_view name, int64_t value) {
  CHECK(value >= 0 && value <= std::numeric_limits<uint32_t>::max(), name, value);
  add_key(name, kU32);
  put(keys_, static_cast<uint32_t>(value));
}

void GgufHeader::add_signed(std::string_view name, int32_t value) {
  add_key(name, kI32);
  put(keys_, value);
}

void GgufHeader::add_number(std::string_view name, double value) {
  add_key(name, kF32);
  put(keys_, static_cast<float>(value));
}

void GgufHeader::add_boolean(std::string_view name, bool value) {
  add_key(name, kBool);
  put(keys_, static_cast<uint8_t>(value));
}

void GgufHeader::add_text(std::string_view name, std::string_view value) {
  add_key(name, kString);
  put_text(keys_, value);
}

void GgufHeader::add_integers(std::string_view name, std::span<const int64_t> values) {
  begin_list(name, kI32, values.size());
  for (const int64_t value : values) put(keys_, static_cast<int32_t>(value));
}

void GgufHeader::add_numbers(std::string_view name, std::span<const double> values) {
  begin_list(name, kF32, values.size());
  for (const double value : values) put(keys_, static_cast<float>(value));
}

void GgufHeader::add_booleans(std::string_view name, const std::vector<bool>& values) {
  begin_list(name, kBool, values.size());
  for (const bool value : values) put(keys_, static_cast<uint8_t>(value));
}

void GgufHeader::add_texts(std::string_view name, std::span<const std::string> values) {
  begin_list(name, kString, values.size());
  for (const std::string& value : values) put_text(keys_, value);
}

void GgufHeader::add_tensor(std::string name, const GgufType& type, std::vector<int64_t> dims) {
  CHECK(!dims.empty() && dims.back() % type.block_elements == 0, name, type.name);
  int64_t elements = 1;
  for (const int64_t dim : dims) elements *= dim;
  const int64_t bytes = elements / type.block_elements * type.block_bytes;
  tensors_.push_back({std::move(name), &type, std::move(dims), data_bytes_, bytes});
  data_bytes_ += aligned(bytes);
}

std::string GgufHeader::serialise() const {
  std::string out = "GGUF";
  put(out, uint32_t{3});
  put(out, static_cast<uint64_t>(tensors_.size()));
  put(out, num_keys_);
  out += keys_;
  for (const Tensor& tensor : tensors_) put_tensor_info(out, tensor);
  out.resize(static_cast<size_t>(aligned(std::ssize(out))), '\0');
  return out;
}

}  // namespace strata
