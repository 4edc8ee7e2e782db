// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "base/check.h"
#include "text/json_reader.h"
#include "text/unicode/unicode.h"

namespace strata {
namespace {

std::string_view name_of_type(const TensorDecl& tensor) {
  if (tensor.integer_bytes == 0) return dtype_name(tensor.dtype);
  if (tensor.integer_bytes == 1) return "U8";
  return tensor.integer_bytes == 8 ? "I64" : "I32";
}

std::string metadata_member(const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> members;
  for (const auto& [key, value] : metadata) {
    members.push_back(text::json_quote(key) + ":" + text::json_quote(value));
  }
  return fmt::format("\"__metadata__\":{{{}}}", fmt::join(members, ","));
}

std::string tensor_member(const TensorDecl& tensor, int64_t offset) {
  std::vector<int64_t> dims;
  for (int axis = 0; axis < tensor.shape.rank(); ++axis) dims.push_back(tensor.shape[axis]);
  return fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                     text::json_quote(tensor.name), name_of_type(tensor), fmt::join(dims, ","),
                     offset, offset + tensor.bytes());
}

std::string header_json(std::span<const TensorDecl> tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> members;
  if (!metadata.empty()) members.push_back(metadata_member(metadata));
  int64_t offset = 0;
  for (const TensorDecl& tensor : tensors) {
    members.push_back(tensor_member(tensor, offset));
    offset += tensor.bytes();
  }
  std::string json = fmt::format("{{{}}}", fmt::join(members, ","));
  json.append((8 - json.size() % 8) % 8, ' ');  // data starts at a multiple of 8
  return json;
}

void check_names(std::span<const TensorDecl> tensors) {
  std::set<std::string_view> seen;
  for (const TensorDecl& tensor : tensors) {
    CHECK(tensor.name != "__metadata__" && text::is_valid_utf8(tensor.name), tensor.name);
    CHECK(seen.insert(tensor.name).second, "declared twice:", tensor.name);
  }
}

// Those of equal elements in their order.
std::vector<TensorDecl> widest_elements_first(std::vector<TensorDecl> tensors) {
  std::vector<TensorDecl> ordered;
  for (const int64_t bytes : {8, 4, 2, 1}) {
    for (TensorDecl& tensor : tensors) {
      if (tensor.element_bytes() == bytes) ordered.push_back(std::move(tensor));
    }
  }
  return ordered;
}

}  // namespace

uint16_t narrow_to_16_bits(float value, DType dtype) {
  CHECK(dtype != DType::kF32);
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  if (!nan) return dtype == DType::kBF16 ? to_bf16(value).bits : float_to_f16(value);
  const int dropped = dtype == DType::kBF16 ? 16 : 13;
  const uint32_t payload = (bits & 0x7fffffu) >> dropped;
  const uint32_t quiet = 0x400000u >> dropped;
  const uint32_t exponent = dtype == DType::kBF16 ? 0x7f80u : 0x7c00u;
  return static_cast<uint16_t>((bits >> 16 & 0x8000u) | exponent |
                               (payload != 0 ? payload : quiet));
}

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<TensorDecl> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::move(path)) {
  check_names(tensors);
  tensors_ = widest_elements_first(std::move(tensors));
  const std::string header = header_json(tensors_, metadata);
  const uint64_t length = header.size();
  file_.append(std::as_bytes(std::span(&length, 1)));
  file_.append(header);
  skip_finished();
}

// Tensors without elements have no turn.
void SafetensorsWriter::skip_finished() {
  while (current_ < tensors_.size() && current_bytes_ == tensors_[current_].bytes()) {
    ++current_;
    current_bytes_ = 0;
  }
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  CHECK(current_ < tensors_.size() && tensors_[current_].name == name, name,
        "is not the tensor whose turn it is");
  current_bytes_ += static_cast<int64_t>(bytes.size());
  CHECK(current_bytes_ <= tensors_[current_].bytes(), name, current_bytes_);
  file_.append(bytes);
  skip_finished();
}

void SafetensorsWriter::append_f32(std::string_view name, std::span<const float> values) {
  if (values.empty()) return;
  CHECK(current_ < tensors_.size() && tensors_[current_].integer_bytes == 0, name);
  const DType dtype = tensors_[current_].dtype;
  if (dtype == DType::kF32) return append(name, std::as_bytes(values));
  constexpr size_t kChunk = 1 << 16;
  std::vector<uint16_t> chunk;
  for (size_t done = 0; done < values.size(); done += kChunk) {
    const auto part = values.subspan(done, std::min(kChunk, values.size() - done));
    chunk.clear();
    for (const float value : part) chunk.push_back(narrow_to_16_bits(value, dtype));
    append(name, std::as_bytes(std::span(chunk)));
  }
}

void SafetensorsWriter::append_view(std::string_view name, const TensorView& values) {
  if (values.shape.num_elements() == 0) return;
  CHECK(current_ < tensors_.size() && values.shape == tensors_[current_].shape, name,
        values.shape.to_string());
  CHECK(values.dtype == DType::kF32, name);
  if (values.dense()) {
    append_f32(name, {values.f32(), static_cast<size_t>(values.shape.num_elements())});
    return;
  }
  for (int64_t row = 0; row < values.rows(); ++row) {
    append_f32(name,
               {static_cast<const float*>(values.row(row)), static_cast<size_t>(values.cols())});
  }
}

void SafetensorsWriter::seal() {
  CHECK(current_ == tensors_.size(), "data is missing from tensor", current_, "on of",
        tensors_.size());
  if (!std::exchange(sealed_, true)) file_.seal();
}

void SafetensorsWriter::commit() {
  seal();
  file_.commit();
}

}  // namespace strata
