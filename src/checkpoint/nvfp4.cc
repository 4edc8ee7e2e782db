// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/nvfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "checkpoint/block_scales.h"

namespace strata {
namespace {

constexpr std::string_view kPacked = ".weight_packed";
constexpr std::string_view kWeight = ".weight";
constexpr int64_t kGroup = 16;                             // columns of a scale
constexpr int64_t kElementsAtOnce = int64_t{8} << 20;      // that are read at once
constexpr float kSmallest = 0x1p-60f, kLargest = 0x1p60f;  // of a tensor's scale, see as_sum()

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("tensor '{}': {}", name, what));
}

bool is_packed_by_compressed_tensors(const TensorInfo& packed) {
  return packed.name.ends_with(kPacked);
}

// "X.weight_scale" of "X.weight" or "X.weight_packed".
std::string part_name(const TensorInfo& packed, std::string_view suffix) {
  return nvfp4_weight_name(packed) + std::string(suffix);
}

std::string_view tensor_scale_suffix(const TensorInfo& packed) {
  return is_packed_by_compressed_tensors(packed) ? "_global_scale" : "_scale_2";
}

// Whether the sum has every product's, or quotient's, bits. Of e4m3's significands all are among
// 1 to 15, and powers of two change no rounding here.
bool is_sum_of(const std::array<float, 2>& sum, const Nvfp4Scale& scale) {
  for (int i = 1; i < 16; ++i) {
    const auto e = static_cast<float>(i);
    const float got = std::fma(e / 256, sum[0], e / 256 * sum[1]);
    if (got != scale.scale_of(e)) return false;
  }
  return true;
}

}  // namespace

std::optional<std::array<float, 2>> Nvfp4Scale::as_sum() const {
  if (t == 0.0f && !divides) return std::array{0.0f, 0.0f};
  // Every e4m3 times them, and e2m1 times that, is then a normal number far from infinity.
  const float size = std::fabs(t);
  if (!(size >= kSmallest && size <= kLargest)) return std::nullopt;
  const double whole = divides ? 256.0 / static_cast<double>(t) : 256.0 * static_cast<double>(t);
  const auto first = static_cast<float>(whole);
  const auto rest = static_cast<float>(whole - static_cast<double>(first));
  const std::array sum = {first, rest};
  return is_sum_of(sum, *this) ? std::optional(sum) : std::nullopt;
}

std::string nvfp4_weight_name(const TensorInfo& packed) {
  if (!is_packed_by_compressed_tensors(packed)) return packed.name;
  return packed.name.substr(0, packed.name.size() - kPacked.size()) + std::string(kWeight);
}

std::vector<std::string> nvfp4_part_names(const TensorInfo& packed) {
  return {part_name(packed, "_scale"), part_name(packed, tensor_scale_suffix(packed))};
}

namespace {

StoredTensorRef require_part(const FindStored& find, const std::string& name,
                             const TensorInfo& packed) {
  const StoredTensorRef part = find(name);
  if (part.info == nullptr) refuse(name, fmt::format("is missing; '{}' wants it", packed.name));
  return part;
}

// By its type and the scales next to it.
bool is_nvfp4(const TensorInfo& packed, const FindStored& find) {
  if (packed.dtype_name != "U8" || packed.dims.size() != 2) return false;
  if (!is_packed_by_compressed_tensors(packed) && !packed.name.ends_with(kWeight)) return false;
  const std::vector<std::string> parts = nvfp4_part_names(packed);
  const StoredTensorRef scale = find(parts[0]);
  return find(parts[1]).info != nullptr ||
         (scale.info != nullptr && scale.info->dtype_name == "F8_E4M3");
}

void read_tensor_scale(const StoredTensorRef& part, Nvfp4Scale& out) {
  const TensorInfo& info = *part.info;
  if (info.dtype_name != "F32" || info.num_bytes() != sizeof(float)) {
    refuse(info.name,
           fmt::format("{} {}, want one element of F32", info.dtype_name, info.shape_text()));
  }
  part.file->read_bytes(info, 0, std::as_writable_bytes(std::span(&out.t, 1)));
  if (std::isfinite(out.t) && (out.t != 0.0f || !out.divides)) return;
  refuse(info.name, fmt::format("got {}, want a finite number{}", out.t,
                                out.divides ? " but 0, which divides" : ""));
}

void check_scales(const TensorInfo& packed, const StoredTensorRef& part, const Nvfp4& state) {
  const TensorInfo& info = *part.info;
  const bool fits = state.cols % kGroup == 0 && info.dtype_name == "F8_E4M3" &&
                    info.dims == std::vector{state.rows, state.cols / kGroup};
  if (fits) return;
  refuse(info.name, fmt::format("{} {}, want F8_E4M3 [{}, {}]: '{}' is [{}, {}] in NVFP4, of 16 "
                                "columns a scale; padded or swizzled for a device?",
                                info.dtype_name, info.shape_text(), state.rows, state.cols / kGroup,
                                packed.name, state.rows, state.cols));
}

}  // namespace

std::shared_ptr<const Nvfp4> read_nvfp4_state(const TensorInfo& packed, const FindStored& find) {
  if (!is_nvfp4(packed, find)) return nullptr;
  auto out = std::make_shared<Nvfp4>();
  out->rows = packed.dims[0];
  if (__builtin_mul_overflow(packed.dims[1], 2, &out->cols))
    refuse(packed.name, "too many columns");
  const std::vector<std::string> parts = nvfp4_part_names(packed);
  const StoredTensorRef scale = require_part(find, parts[0], packed);
  check_scales(packed, scale, *out);
  out->scale = *scale.info;
  out->scale_shard = scale.shard;
  out->tensor_scale.divides = is_packed_by_compressed_tensors(packed);
  read_tensor_scale(require_part(find, parts[1], packed), out->tensor_scale);
  const auto sum = out->tensor_scale.as_sum();
  if (sum && out->cols % kNarrowGroup == 0) out->form = NarrowForm::kNvfp4, out->sum = *sum;
  return out;
}

namespace {

// What is stored of some elements: their codes and their groups' scales.
struct Piece {
  int64_t first_byte = 0, first_group = 0;
  std::vector<uint8_t> bytes, scales;

  void read(const Nvfp4& state, const SafetensorsFile& weights, const TensorInfo& weight,
            const SafetensorsFile& scale_file, int64_t begin, int64_t end) {
    first_byte = begin / 2;
    bytes.resize(static_cast<size_t>((end - 1) / 2 + 1 - first_byte));
    weights.read_bytes(weight, first_byte, std::as_writable_bytes(std::span(bytes)));
    first_group = begin / kGroup;
    scales.resize(static_cast<size_t>((end - 1) / kGroup + 1 - first_group));
    scale_file.read_bytes(state.scale, first_group, std::as_writable_bytes(std::span(scales)));
  }
  [[nodiscard]] uint8_t code(int64_t element) const {
    const uint8_t byte = bytes[static_cast<size_t>(element / 2 - first_byte)];
    return element % 2 == 0 ? byte & 15 : byte >> 4;
  }
  [[nodiscard]] uint8_t scale(int64_t element) const {
    return scales[static_cast<size_t>(element / kGroup - first_group)];
  }
};

bool is_held(uint8_t scale) { return scale < 0x7f; }

std::string unrepresentable_scale_text(const Nvfp4& state, int64_t row) {
  return fmt::format(
      "tensor '{}': row {} has a scale below zero, or one that is no number, with which weights do "
      "not stay in 4 bits",
      state.scale.name, row);
}

}  // namespace

void read_nvfp4_values(const Nvfp4& state, const SafetensorsFile& weights, const TensorInfo& weight,
                       const SafetensorsFile& scales, int64_t first, int64_t count, float* out) {
  Piece piece;
  for (int64_t begin = first; begin < first + count; begin += kElementsAtOnce) {
    const int64_t end = std::min(first + count, begin + kElementsAtOnce);
    piece.read(state, weights, weight, scales, begin, end);
    for (int64_t i = begin; i < end; ++i) {
      const float scale = state.tensor_scale.scale_of(e4m3_to_float(piece.scale(i)));
      *out++ = e2m1_to_float(piece.code(i)) * scale;
    }
  }
}

std::string scan_nvfp4_for_unrepresentable_scales(const Nvfp4& state,
                                                  const SafetensorsFile& scales) {
  const int64_t of_row = state.cols / kGroup;
  std::vector<uint8_t> bytes;
  for (int64_t first = 0; first < state.rows * of_row; first += std::ssize(bytes)) {
    bytes.resize(static_cast<size_t>(std::min(state.rows * of_row - first, kElementsAtOnce)));
    scales.read_bytes(state.scale, first, std::as_writable_bytes(std::span(bytes)));
    const auto bad = std::find_if_not(bytes.begin(), bytes.end(), is_held);
    if (bad == bytes.end()) continue;
    return unrepresentable_scale_text(state, (first + (bad - bytes.begin())) / of_row);
  }
  return {};
}

void fill_nvfp4_super_fields(const std::array<float, 2>& sum, std::span<std::byte> out) {
  for (size_t at = 0; at < out.size(); at += sizeof(sum))
    std::memcpy(&out[at], sum.data(), sizeof(sum));
}

void read_quantised_rows_of_nvfp4(const Nvfp4& state, const SafetensorsFile& weights,
                                  const TensorInfo& weight, const SafetensorsFile& scales,
                                  int64_t first_row, int64_t count, std::byte* out) {
  const int64_t cols = state.cols;
  const auto row_bytes = static_cast<size_t>(narrow_layout(state.form).row_bytes(cols));
  if (count == 0) return;
  Piece piece;
  piece.read(state, weights, weight, scales, first_row * cols, (first_row + count) * cols);
  for (int64_t row = first_row; row < first_row + count; ++row, out += row_bytes) {
    for (int64_t c = 0; c < cols; ++c) out[c] = std::byte{piece.code(row * cols + c)};
    std::byte* const fields = out + cols;
    for (int64_t g = 0; g < cols / kGroup; ++g) {
      const uint8_t scale = piece.scale(row * cols + g * kGroup);
      if (!is_held(scale)) {
        throw Error(ErrorCode::kInvalidArgument,
                    unrepresentable_scale_text(state, row) + "; --weights bf16");
      }
      fields[g] = std::byte{scale};
    }
    fill_nvfp4_super_fields(state.sum, {fields + cols / kGroup, out + row_bytes});
  }
}

}  // namespace strata
