// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf/gguf_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/gguf/narrow.h"
#include "checkpoint/gguf/tokenizer.h"
#include "checkpoint/nvfp4.h"

namespace strata {
namespace {

bool is_raw(const GgufWeight& weight) {
  return weight.from.info->type->is_float() && weight.change == GgufWeight::Change::kNone &&
         weight.values.info == nullptr;
}

// Sets the bytes of the stored tensor's rows that the weight is; all where it is made of two.
void set_byte_range(const GgufWeight& weight, TensorInfo& info) {
  const GgufTensor& stored = *weight.from.info;
  info.begin = stored.begin;
  info.end = stored.end;
  if (weight.values.info != nullptr) return;
  int64_t elements = 1;
  for (const int64_t dim : weight.dims) elements *= dim;
  info.begin += weight.first_row * stored.row_bytes();
  info.end = info.begin + elements / stored.columns() * stored.row_bytes();
}

// The type of one of the stored tensors that the weight is made of: one that is not read, if any.
const GgufType& least_readable_type(const GgufWeight& weight) {
  const GgufType& type = *weight.from.info->type;
  if (weight.values.info == nullptr) return type;
  const GgufType& other = *weight.values.info->type;
  return other.dequantise == nullptr ? other : type;
}

// In which the weight's values are read.
DType readable_dtype(const GgufWeight& weight) {
  const std::string_view stored = weight.from.info->type->name;
  if (is_raw(weight) && stored == "BF16") return DType::kBF16;
  if (is_raw(weight) && stored == "F16") return DType::kF16;
  return DType::kF32;
}

TensorInfo make_tensor_info(const GgufWeight& weight) {
  const GgufType& type = least_readable_type(weight);
  TensorInfo info;
  info.name = weight.name;
  info.dtype_name = type.name;
  info.dims = weight.dims;
  set_byte_range(weight, info);
  if (type.dequantise == nullptr || weight.dims.size() > kMaxRank) return info;
  info.readable = true;
  info.dtype = readable_dtype(weight);
  for (const int64_t dim : weight.dims) info.shape.push_back(dim);
  return info;
}

// A of the stored -exp(A). Files lose bits of an A near zero; where one of 16 bits, as models have
// them, gives what is stored to its last bit, it is that one.
float restored_a_log(float stored) {
  const auto value = static_cast<float>(std::log(-static_cast<double>(stored)));
  const float narrow = round_to_bf16(value);
  const auto again = static_cast<float>(-std::exp(static_cast<double>(narrow)));
  const bool gives = std::nextafter(again, stored) == stored;
  return gives ? narrow : value;
}

float to_huggingface_value(GgufWeight::Change change, float value) {
  switch (change) {
    case GgufWeight::Change::kNone:
      break;
    case GgufWeight::Change::kMinusOne:
      return value - 1.0f;
    case GgufWeight::Change::kLogOfNegative:
      return restored_a_log(value);
  }
  return value;
}

}  // namespace

GgufSource::GgufSource(const std::string& path)
    : CheckpointSource(path), model_(path), weights_(gguf_weights(model_)) {
  for (const GgufFile& file : model_.files()) {
    shard_names_.push_back(std::filesystem::path(file.path()).filename().string());
  }
  for (const GgufWeight& weight : weights_) {
    if (find(weight.name) != nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: two tensors are {}", path, weight.name));
    }
    add({make_tensor_info(weight), weight.from.file});
  }
}

const GgufWeight& GgufSource::weight_of(const CheckpointTensor& tensor) const {
  const auto index = static_cast<size_t>(&tensor - tensors_.data());
  CHECK(index < weights_.size(), tensor.info.name);
  return weights_[index];
}

const GgufWeight& GgufSource::readable_weight_of(const CheckpointTensor& tensor) const {
  const GgufWeight& weight = weight_of(tensor);
  if (tensor.info.readable) return weight;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: tensor '{}': {} {} cannot be read; supported are {}, of at most "
                          "{} axes",
                          path_, weight.from.info->name, tensor.info.dtype_name,
                          tensor.info.shape_text(), readable_gguf_types(), kMaxRank));
}

void GgufSource::read_stored_rows(const GgufModel::Tensor& tensor, int64_t first_row, int64_t count,
                                  std::byte* out) const {
  const int64_t row_bytes = tensor.info->row_bytes();
  model_.files()[tensor.file].read_bytes(*tensor.info, first_row * row_bytes,
                                         {out, static_cast<size_t>(count * row_bytes)});
}

void GgufSource::dequantise_rows(const GgufModel::Tensor& tensor, int64_t first_row, int64_t count,
                                 float scale, float* out) const {
  const GgufTensor& info = *tensor.info;
  const int64_t blocks = info.columns() / info.type->block_elements;
  std::vector<std::byte> bytes(static_cast<size_t>(count * info.row_bytes()));
  read_stored_rows(tensor, first_row, count, bytes.data());
  if (scale != 1.0f) return dequantise_gguf_nvfp4(bytes.data(), count * blocks, scale, out);
  const int64_t fault = info.type->dequantise(bytes.data(), count * blocks, out);
  if (fault >= 0) fail_non_finite_scale(tensor, first_row * blocks + fault);
}

void GgufSource::fail_non_finite_scale(const GgufModel::Tensor& tensor, int64_t block) const {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: tensor '{}': the scale of block {} ({}) is no finite number; damaged?",
                  model_.files()[tensor.file].path(), tensor.info->name, block,
                  tensor.info->type->name));
}

namespace {

// Calls body(first row, its row in the stored tensor, count) for rows that lie one behind the other
// there.
template <typename Body>
void for_each_run_of_rows(const GgufWeight& weight, int64_t first_row, int64_t count, Body body) {
  if (weight.rows.empty()) return body(first_row, weight.first_row + first_row, count);
  for (int64_t row = first_row; row < first_row + count;) {
    const auto stored = [&](int64_t at) { return weight.rows[static_cast<size_t>(at)]; };
    int64_t run = 1;
    while (row + run < first_row + count && stored(row + run) == stored(row) + run) ++run;
    body(row, weight.first_row + stored(row), run);
    row += run;
  }
}

void pick_columns(std::span<const int32_t> columns, std::span<const float> row, float* out) {
  for (size_t c = 0; c < columns.size(); ++c) out[c] = row[static_cast<size_t>(columns[c])];
}

// The same of a row of elements of `size` bytes.
void pick_columns(std::span<const int32_t> columns, std::span<const std::byte> row, size_t size,
                  std::byte* out) {
  for (const int32_t column : columns) {
    std::memcpy(out, &row[static_cast<size_t>(column) * size], size);
    out += size;
  }
}

void copy_column(std::span<const float> matrix, int64_t columns, int64_t column, int64_t rows,
                 float* out) {
  for (int64_t r = 0; r < rows; ++r) out[r] = matrix[static_cast<size_t>(r * columns + column)];
}

}  // namespace

void GgufSource::dequantise_columns(const GgufWeight& weight, int64_t first_row, int64_t count,
                                    std::span<float> row, float* out) const {
  if (weight.columns.empty())
    return dequantise_rows(weight.from, first_row, count, weight.scale, out);
  for (int64_t i = 0; i < count; ++i, out += weight.columns.size()) {
    dequantise_rows(weight.from, first_row + i, 1, weight.scale, row.data());
    pick_columns(weight.columns, row, out);
  }
}

void GgufSource::read_dequantised_rows(const GgufWeight& weight, int64_t first_row, int64_t count,
                                       float* out) const {
  if (weight.values.info != nullptr) return read_kv_b_rows(weight, first_row, count, out);
  const int64_t stored_columns = weight.from.info->columns();
  const int64_t columns = weight.dims.back();
  std::vector<float> row(static_cast<size_t>(weight.columns.empty() ? 0 : stored_columns));
  for_each_run_of_rows(weight, first_row, count, [&](int64_t begin, int64_t stored, int64_t run) {
    dequantise_columns(weight, stored, run, row, out + (begin - first_row) * columns);
  });
  if (weight.change == GgufWeight::Change::kNone) return;
  for (int64_t i = 0; i < count * columns; ++i)
    out[i] = to_huggingface_value(weight.change, out[i]);
}

void GgufSource::read_columns(const GgufWeight& weight, int64_t first_row, int64_t count,
                              std::span<std::byte> row, std::byte* out) const {
  if (weight.columns.empty()) return read_stored_rows(weight.from, first_row, count, out);
  const auto size = static_cast<size_t>(weight.from.info->type->block_bytes);
  for (int64_t i = 0; i < count; ++i, out += weight.columns.size() * size) {
    read_stored_rows(weight.from, first_row + i, 1, row.data());
    pick_columns(weight.columns, row, size, out);
  }
}

void GgufSource::read_raw_rows(const GgufWeight& weight, int64_t first_row, int64_t count,
                               std::byte* out) const {
  const GgufTensor& info = *weight.from.info;
  const auto size = static_cast<size_t>(info.type->block_bytes);
  const int64_t columns = weight.dims.back();
  std::vector<std::byte> row(weight.columns.empty() ? 0 : static_cast<size_t>(info.row_bytes()));
  for_each_run_of_rows(weight, first_row, count, [&](int64_t begin, int64_t stored, int64_t run) {
    read_columns(weight, stored, run, row,
                 out + static_cast<size_t>((begin - first_row) * columns) * size);
  });
}

void GgufSource::read_kv_b_rows(const GgufWeight& weight, int64_t first_row, int64_t count,
                                float* out) const {
  const int64_t rank = weight.from.info->dims[1];
  const int64_t nope = weight.from.info->dims[2];
  const int64_t value = weight.values.info->dims[1];
  std::vector<float> keys(static_cast<size_t>(rank * nope));
  int64_t held = -1;  // the head that they are of
  for (int64_t row = first_row; row < first_row + count; ++row, out += rank) {
    const int64_t head = row / (nope + value);
    const int64_t within = row % (nope + value);
    if (within >= nope) {
      dequantise_rows(weight.values, head * value + within - nope, 1, 1.0f, out);
      continue;
    }
    if (held != head) dequantise_rows(weight.from, head * rank, rank, 1.0f, keys.data());
    held = head;
    copy_column(keys, nope, within, rank, out);
  }
}

void GgufSource::read_whole_rows(const GgufWeight& weight, int64_t first_row, int64_t count,
                                 std::byte* out) const {
  if (is_raw(weight)) return read_raw_rows(weight, first_row, count, out);
  read_dequantised_rows(weight, first_row, count, reinterpret_cast<float*>(out));
}

void GgufSource::read_parts_of_rows(const GgufWeight& weight, int64_t first_element, int64_t count,
                                    std::byte* out) const {
  const int64_t columns = weight.dims.back();
  const int64_t bytes =
      is_raw(weight) ? weight.from.info->type->block_bytes : int64_t{sizeof(float)};
  const int64_t first_row = first_element / columns;
  const int64_t last_row = (first_element + count + columns - 1) / columns;
  std::vector<std::byte> rows(static_cast<size_t>((last_row - first_row) * columns * bytes));
  read_whole_rows(weight, first_row, last_row - first_row, rows.data());
  std::memcpy(out, rows.data() + first_element % columns * bytes,
              static_cast<size_t>(count * bytes));
}

void GgufSource::read(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                      void* raw_out) const {
  const GgufWeight& weight = readable_weight_of(tensor);
  CHECK(
      0 <= first_element && 0 <= count && first_element <= tensor.info.shape.num_elements() - count,
      first_element, count, tensor.info.shape.num_elements());
  if (count == 0) return;
  auto* const out = static_cast<std::byte*>(raw_out);
  const int64_t columns = weight.dims.back();
  if (first_element % columns == 0 && count % columns == 0) {
    return read_whole_rows(weight, first_element / columns, count / columns, out);
  }
  read_parts_of_rows(weight, first_element, count, out);
}

void GgufSource::read_f32(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                          float* out) const {
  if (!tensor.info.readable || tensor.info.dtype == DType::kF32) {
    return read(tensor, first_element, count, out);
  }
  std::vector<uint16_t> narrow(static_cast<size_t>(count));
  read(tensor, first_element, count, narrow.data());
  const bool is_f16 = tensor.info.dtype == DType::kF16;
  std::transform(narrow.begin(), narrow.end(), out,
                 [&](uint16_t bits) { return is_f16 ? f16_to_float(bits) : to_float(Bf16{bits}); });
}

NarrowForm GgufSource::narrow_form(const CheckpointTensor& tensor) const {
  const GgufWeight& weight = weight_of(tensor);
  const bool as_stored = weight.columns.empty() && weight.change == GgufWeight::Change::kNone &&
                         weight.values.info == nullptr;
  const bool is_held = Nvfp4Scale{.t = weight.scale}.as_sum().has_value();
  return as_stored && is_held && tensor.info.readable ? gguf_narrow_form(*weight.from.info->type)
                                                      : NarrowForm::kNone;
}

void GgufSource::read_quantised_rows(const CheckpointTensor& tensor, int64_t first_row,
                                     int64_t count, std::byte* out) const {
  const GgufWeight& weight = readable_weight_of(tensor);
  const GgufTensor& info = *weight.from.info;
  const int64_t row_bytes = narrow_layout(gguf_narrow_form(*info.type)).row_bytes(info.columns());
  const int64_t blocks = info.columns() / info.type->block_elements;
  const std::array<float, 2> sum = *Nvfp4Scale{.t = weight.scale}.as_sum();
  std::vector<std::byte> bytes;
  for_each_run_of_rows(weight, first_row, count, [&](int64_t begin, int64_t stored, int64_t run) {
    bytes.resize(static_cast<size_t>(run * info.row_bytes()));
    read_stored_rows(weight.from, stored, run, bytes.data());
    const int64_t fault = gguf_repack_rows_until_fault(
        *info.type, bytes.data(), run, info.columns(), out + (begin - first_row) * row_bytes, sum);
    if (fault >= 0) fail_non_finite_scale(weight.from, stored * blocks + fault);
  });
}

void GgufSource::read_bytes(const CheckpointTensor& tensor, int64_t first_byte,
                            std::span<std::byte> out) const {
  const GgufModel::Tensor& from = weight_of(tensor).from;
  model_.files()[from.file].read_bytes(*from.info,
                                       tensor.info.begin - from.info->begin + first_byte, out);
}

CheckpointLayout GgufSource::layout() const {
  CheckpointLayout layout;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorInfo& info = tensors_[i].info;
    if (!info.readable) continue;
    const bool is_float = weights_[i].from.info->type->is_float();
    layout.entries.push_back(
        {{.name = info.name, .dtype = is_float ? info.dtype : DType::kBF16, .shape = info.shape},
         "model.safetensors"});
  }
  return layout;
}

ModelTexts gguf_texts(const std::string& path) {
  const auto model = std::make_shared<const GgufModel>(path);
  return {path, [model](std::string_view name) -> std::optional<std::string> {
            if (name == "config.json") return gguf_config(*model);
            return make_gguf_text_file(model->keys(), name);
          }};
}

}  // namespace strata
