// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/block_scales.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "base/error.h"
#include "checkpoint/narrow_scale.h"
#include "text/json_reader.h"

namespace strata {
namespace {

constexpr std::string_view kPowersOfTwo = "F8_E8M0";
constexpr std::string_view kE4m3 = "F8_E4M3";
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kBlocks = "_blocks";
constexpr int64_t kBlockBytes = 16;
// Elements that are read at once: few reads, of little memory next to what they become.
constexpr int64_t kElementsAtOnce = int64_t{8} << 20;
constexpr int64_t kFp8Columns = 128;   // of one scale of NarrowForm::kFp8
constexpr int kLargestExponent = 252;  // of e8m0 that keeps every e2m1 finite

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = bits >> 3 & 15;
    const int mantissa = bits & 7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    if (exponent == 15 && mantissa == 7) value = std::numeric_limits<float>::quiet_NaN();
    table[static_cast<size_t>(bits)] = bits >= 128 ? -value : value;
  }
  return table;
}

// "Y.scale" of "Y.weight".
std::string sibling(std::string_view tensor, std::string_view suffix) {
  return fmt::format("{}{}", tensor.substr(0, tensor.size() - kWeight.size()), suffix);
}

int64_t blocks_of(int64_t size, int64_t block) { return size / block + int64_t{size % block != 0}; }

// The row of scales that a row of the weight has.
int64_t scale_row_of(const BlockFormat& format, int64_t row) {
  const int64_t rows = format.dims[format.dims.size() - 2];
  return row / rows * blocks_of(rows, format.block_rows) + row % rows / format.block_rows;
}

std::vector<int64_t> scale_dims(const BlockFormat& format) {
  std::vector<int64_t> dims = format.dims;
  const size_t axis = dims.size() - 2;
  dims[axis] = blocks_of(dims[axis], format.block_rows);
  dims[axis + 1] = blocks_of(dims[axis + 1], format.block_cols);
  return dims;
}

// The bytes of MXFP8's scales are exponents too.
bool is_exponents(const TensorInfo& scale) {
  return scale.dtype_name == kPowersOfTwo || scale.dtype_name == "U8";
}

void read_scales(const SafetensorsFile& file, const TensorInfo& scale, int64_t first,
                 std::span<float> out) {
  if (!is_exponents(scale)) return file.read_f32(scale, first, std::ssize(out), out.data());
  std::vector<uint8_t> bytes(out.size());
  file.read_bytes(scale, first, std::as_writable_bytes(std::span(bytes)));
  std::transform(bytes.begin(), bytes.end(), out.begin(), e8m0_to_float);
}

}  // namespace

float e4m3_to_float(uint8_t bits) {
  static const std::array<float, 256> kTable = make_e4m3_table();
  return kTable[bits];
}

float e2m1_to_float(uint8_t bits) {
  constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float value = kValues[bits & 7];
  return (bits & 8) != 0 ? -value : value;
}

float e8m0_to_float(uint8_t bits) {
  if (bits == 0xff) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, static_cast<int>(bits) - 127);
}

namespace {

// "X_blocks" of gpt-oss: bytes [..., blocks of a row, 16], of two elements each.
bool is_blocks(const TensorInfo& weight) {
  return weight.name.ends_with(kBlocks) && weight.dtype_name == "U8" && weight.dims.size() > 2 &&
         weight.dims.back() == kBlockBytes;
}

std::optional<BlockFormat> joined_blocks_format(const TensorInfo& stored) {
  BlockFormat format{.block_rows = 1,
                     .block_cols = 2 * kBlockBytes,
                     .elements_per_byte = 2,
                     .dims = {stored.dims.begin(), stored.dims.end() - 1}};
  if (__builtin_mul_overflow(format.dims.back(), format.block_cols, &format.dims.back())) {
    return std::nullopt;
  }
  return format;
}

}  // namespace

std::optional<BlockFormat> block_format(const TensorInfo& stored) {
  const std::string_view dtype = stored.dtype_name;
  if (stored.dims.size() < 2 || std::ssize(stored.dims) > kMaxRank) return std::nullopt;
  if (is_blocks(stored)) return joined_blocks_format(stored);
  if (dtype == kE4m3) return BlockFormat{.block_rows = 128, .block_cols = 128, .dims = stored.dims};
  if (dtype != "F4" && dtype != "I8" && dtype != "U8") return std::nullopt;
  BlockFormat format{
      .block_rows = 1, .block_cols = 32, .elements_per_byte = 2, .dims = stored.dims};
  if (dtype != "F4" && __builtin_mul_overflow(format.dims.back(), 2, &format.dims.back()))
    return std::nullopt;
  if (format.dims.back() % 2 != 0) return std::nullopt;  // a row would end inside a byte
  return format;
}

namespace {

std::array<int64_t, 2> parse_block_size(text::JsonReader& json) {
  std::vector<int64_t> sizes;
  json.begin_array();
  while (json.next_item()) sizes.push_back(json.read_integer());
  if (sizes.size() != 2 || *std::min_element(sizes.begin(), sizes.end()) < 1) {
    json.fail("weight_block_size: want two numbers above 0");
  }
  return {sizes[0], sizes[1]};
}

// Leaves `block` as it is where the object has none.
void parse_quantization_config(text::JsonReader& json,
                               std::optional<std::array<int64_t, 2>>& block) {
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "weight_block_size" && json.peek_kind() == text::JsonReader::Kind::kArray) {
      block = parse_block_size(json);
    } else {
      json.skip();
    }
  }
}

}  // namespace

std::optional<std::array<int64_t, 2>> parse_config_block_size(const std::string& config_text,
                                                              const std::string& where) {
  text::JsonReader json(config_text, where);
  std::optional<std::array<int64_t, 2>> block;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "quantization_config" && json.peek_kind() == text::JsonReader::Kind::kObject) {
      parse_quantization_config(json, block);
    } else {
      json.skip();
    }
  }
  return block;
}

std::string name_with_scales(const TensorInfo& weight) {
  const size_t suffix = is_blocks(weight) ? kBlocks.size() : 0;
  return weight.name.substr(0, weight.name.size() - suffix);
}

std::vector<std::string> scale_names(const TensorInfo& weight) {
  if (is_blocks(weight)) return {name_with_scales(weight) + "_scales"};
  std::vector<std::string> names = {fmt::format("{}_scale_inv", weight.name)};
  if (weight.name.ends_with(kWeight)) names.push_back(sibling(weight.name, ".scale"));
  // Next to bytes of four bits this is another program's, NVFP4's.
  if (weight.dtype_name == kE4m3) names.push_back(fmt::format("{}_scale", weight.name));
  return names;
}

std::vector<std::string> activation_scale_names(std::string_view tensor) {
  if (!tensor.ends_with(kWeight)) return {};
  return {sibling(tensor, ".input_scale"), sibling(tensor, ".activation_scale"),
          sibling(tensor, ".input_global_scale"), sibling(tensor, ".output_scale")};
}

bool is_cache_scale(std::string_view tensor) {
  return tensor.ends_with(".q_scale") || tensor.ends_with(".k_scale") ||
         tensor.ends_with(".v_scale");
}

namespace {

// Where an FP8 matrix has one scale, or one for each row.
bool fit_blocks_to_whole_rows(const std::vector<int64_t>& scale_dims, BlockFormat& format) {
  if (format.elements_per_byte != 1 || format.dims.size() != 2) return false;
  const int64_t rows = format.dims[0];
  const auto is_one = [](int64_t dim) { return dim == 1; };
  const bool one = std::all_of(scale_dims.begin(), scale_dims.end(), is_one);
  const bool by_row = !scale_dims.empty() && scale_dims[0] == rows && scale_dims.size() <= 2 &&
                      std::all_of(scale_dims.begin() + 1, scale_dims.end(), is_one);
  if (!one && !by_row) return false;
  format.block_rows = one ? rows : 1;
  format.block_cols = format.dims[1];
  return true;
}

}  // namespace

std::string fit_format(const TensorInfo& weight, const TensorInfo& scale, BlockFormat& format) {
  const bool bytes_fit = format.elements_per_byte == 1 || is_blocks(weight);
  const bool fits = scale.dtype_name == "U8" ? bytes_fit : is_exponents(scale);
  if (!scale.readable && !fits) {
    return fmt::format("tensor '{}': dtype {}, want F32, F16, BF16 or {}", scale.name,
                       scale.dtype_name, kPowersOfTwo);
  }
  const std::vector<int64_t> want = scale_dims(format);
  if (scale.dims == want) return "";
  if (fit_blocks_to_whole_rows(scale.dims, format)) return "";
  return fmt::format("tensor '{}': shape {}, want [{}]: '{}' is {} {} in blocks of {} x {}{}",
                     scale.name, scale.shape_text(), fmt::join(want, ", "), weight.name,
                     weight.dtype_name, weight.shape_text(), format.block_rows, format.block_cols,
                     format.elements_per_byte == 2 ? " elements of 4 bits" : "");
}

namespace {

// Elements [begin, end) of a weight as stored, and the rows of scales that they have.
struct ScaledPiece {
  int64_t begin = 0, end = 0;
  int64_t first_byte = 0, first_scale_row = 0;
  std::vector<uint8_t> bytes;
  std::vector<float> factors;
};

void read_scaled_piece(const SafetensorsFile& weights, const TensorInfo& weight,
                       const BlockFormat& format, const SafetensorsFile& scales,
                       const TensorInfo& scale, ScaledPiece& piece) {
  const int64_t cols = format.dims.back();
  const int64_t last = piece.end - 1;
  piece.first_byte = piece.begin / format.elements_per_byte;
  piece.bytes.resize(static_cast<size_t>(last / format.elements_per_byte + 1 - piece.first_byte));
  weights.read_bytes(weight, piece.first_byte, std::as_writable_bytes(std::span(piece.bytes)));
  const int64_t scale_cols = blocks_of(cols, format.block_cols);
  piece.first_scale_row = scale_row_of(format, piece.begin / cols);
  const int64_t num_rows = scale_row_of(format, last / cols) + 1 - piece.first_scale_row;
  piece.factors.resize(static_cast<size_t>(num_rows * scale_cols));
  read_scales(scales, scale, piece.first_scale_row * scale_cols, piece.factors);
}

// Element `at` of the weight, without its scale.
float unscaled_element(const BlockFormat& format, const ScaledPiece& piece, int64_t at) {
  const auto byte =
      piece.bytes[static_cast<size_t>(at / format.elements_per_byte - piece.first_byte)];
  if (format.elements_per_byte == 1) return e4m3_to_float(byte);
  return e2m1_to_float(at % 2 == 0 ? byte : byte >> 4);
}

// Elements [at, at + count), which are of one row.
void dequantise_in_row(const BlockFormat& format, const ScaledPiece& piece, int64_t at,
                       int64_t count, float* out) {
  const int64_t cols = format.dims.back();
  const int64_t scale_row = scale_row_of(format, at / cols) - piece.first_scale_row;
  const float* factors = piece.factors.data() + scale_row * blocks_of(cols, format.block_cols);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = unscaled_element(format, piece, at + i) * factors[(at % cols + i) / format.block_cols];
  }
}

void dequantise_piece(const BlockFormat& format, const ScaledPiece& piece, float* out) {
  const int64_t cols = format.dims.back();
  for (int64_t at = piece.begin; at < piece.end;) {
    const int64_t in_row = std::min(cols - at % cols, piece.end - at);
    dequantise_in_row(format, piece, at, in_row, out + (at - piece.begin));
    at += in_row;
  }
}

}  // namespace

void read_dequantised(const SafetensorsFile& weights, const TensorInfo& weight,
                      const BlockFormat& format, const SafetensorsFile& scales,
                      const TensorInfo& scale, int64_t first, int64_t count, float* out) {
  ScaledPiece piece;
  for (piece.begin = first; piece.begin < first + count; piece.begin = piece.end) {
    piece.end = std::min(first + count, piece.begin + kElementsAtOnce);
    read_scaled_piece(weights, weight, format, scales, scale, piece);
    dequantise_piece(format, piece, out + (piece.begin - first));
  }
}

NarrowForm scaled_narrow_form(const BlockFormat& format, const TensorInfo& scale) {
  const int64_t cols = format.dims.back();
  if (cols % kNarrowGroup != 0) return NarrowForm::kNone;
  if (format.elements_per_byte == 2) {
    return is_exponents(scale) ? NarrowForm::kE2m1 : NarrowForm::kNone;
  }
  const bool fits = format.block_cols % kFp8Columns == 0 || format.block_cols >= cols;
  return fits ? NarrowForm::kFp8 : NarrowForm::kNone;
}

namespace {

std::string unrepresentable_row_text(const TensorInfo& weight, int64_t row) {
  return fmt::format(
      "tensor '{}': row {} has values that are no numbers in {}, or scales with which weights do "
      "not stay in few bits",
      weight.name, row, weight.dtype_name);
}

bool is_nan(uint8_t e4m3) { return (e4m3 & 0x7f) == 0x7f; }

// e8m0 of a power of two, which each of these scales is (scaled_narrow_form); -1 of a NaN and of
// what is not finite times 6.
int e8m0_of(float factor) {
  int exponent = 0;  // of 0.5
  std::frexp(factor, &exponent);
  const int e = exponent - 1 + 127;
  return std::isfinite(factor) && e >= 0 && e <= kLargestExponent ? e : -1;
}

// A row's super fields: times 256, as its codes are e4m3 / 256.
bool pack_float_scales(std::span<const float> factors, int64_t block_cols, int64_t cols,
                       std::byte* out) {
  const int64_t count = blocks_of(cols, kNarrowSuper) * kNarrowSuper / kFp8Columns;
  bool fits = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t col = std::min(i * kFp8Columns, cols - 1);
    const float scale = factors[static_cast<size_t>(col / block_cols)] * 256.0f;
    fits = fits && fits_narrow_fp8(scale);
    std::memcpy(out + i * 4, &scale, sizeof(scale));
  }
  return fits;
}

bool pack_exponent_scales(std::span<const float> factors, std::byte* out) {
  bool fits = true;
  for (const float factor : factors) {
    const int e = e8m0_of(factor);
    fits = fits && e >= 0;
    *out++ = static_cast<std::byte>(e);
  }
  return fits;
}

int64_t count_scales(const TensorInfo& weight, const BlockFormat& format) {
  const int64_t cols = format.dims[format.dims.size() - 1];
  const int64_t rows = format.dims[format.dims.size() - 2];
  return weight.shape.num_elements() / (rows * cols) * blocks_of(rows, format.block_rows) *
         blocks_of(cols, format.block_cols);
}

// The first of the weight's rows that have the scale.
int64_t first_row_of_scale(const BlockFormat& format, int64_t scale) {
  const int64_t rows = format.dims[format.dims.size() - 2];
  const int64_t scale_rows = blocks_of(rows, format.block_rows);
  const int64_t scale_row = scale / blocks_of(format.dims.back(), format.block_cols);
  return scale_row / scale_rows * rows + scale_row % scale_rows * format.block_rows;
}

// The first row of the weight with a scale that the form does not hold, or -1.
int64_t find_row_of_unfit_scale(const TensorInfo& weight, const BlockFormat& format, bool is_fp8,
                                const SafetensorsFile& scales, const TensorInfo& scale) {
  const auto fits = [&](float factor) {
    return is_fp8 ? fits_narrow_fp8(factor * 256.0f) : e8m0_of(factor) >= 0;
  };
  const int64_t count = count_scales(weight, format);
  std::vector<float> factors;
  for (int64_t first = 0; first < count; first += std::ssize(factors)) {
    factors.resize(static_cast<size_t>(std::min(count - first, kElementsAtOnce)));
    read_scales(scales, scale, first, factors);
    const auto bad = std::find_if_not(factors.begin(), factors.end(), fits);
    if (bad != factors.end()) return first_row_of_scale(format, first + (bad - factors.begin()));
  }
  return -1;
}

// The first row of a weight in e4m3 with a NaN, or -1.
int64_t find_row_of_nan(const SafetensorsFile& weights, const TensorInfo& weight, int64_t cols) {
  std::vector<uint8_t> bytes;
  for (int64_t first = 0; first < weight.num_bytes(); first += std::ssize(bytes)) {
    bytes.resize(static_cast<size_t>(std::min(weight.num_bytes() - first, kElementsAtOnce)));
    weights.read_bytes(weight, first, std::as_writable_bytes(std::span(bytes)));
    const auto bad = std::find_if(bytes.begin(), bytes.end(), is_nan);
    if (bad != bytes.end()) return (first + (bad - bytes.begin())) / cols;
  }
  return -1;
}

// One row in NarrowForm::kFp8; whether it holds all values and scales.
bool pack_fp8_row(std::span<const uint8_t> bytes, std::span<const float> factors,
                  const BlockFormat& format, std::byte* out) {
  const int64_t cols = format.dims.back();
  const bool fits = std::none_of(bytes.begin(), bytes.end(), is_nan);
  std::memcpy(out, bytes.data(), bytes.size());
  return pack_float_scales(factors, format.block_cols, cols, out + cols) && fits;
}

// Likewise in NarrowForm::kE2m1, of two elements a byte.
bool pack_e2m1_row(std::span<const uint8_t> bytes, std::span<const float> factors,
                   const BlockFormat& format, std::byte* out) {
  const int64_t cols = format.dims.back();
  for (int64_t i = 0; i < cols; ++i) {
    const uint8_t byte = bytes[static_cast<size_t>(i / 2)];
    out[i] = static_cast<std::byte>(i % 2 == 0 ? byte & 15 : byte >> 4);
  }
  return pack_exponent_scales(factors, out + cols);
}

bool pack_row(NarrowForm form, std::span<const uint8_t> bytes, std::span<const float> factors,
              const BlockFormat& format, std::byte* out) {
  return form == NarrowForm::kFp8 ? pack_fp8_row(bytes, factors, format, out)
                                  : pack_e2m1_row(bytes, factors, format, out);
}

// Scales by row of the weight; rows one behind the other that have the same are read once.
class RowScales {
 public:
  RowScales(const BlockFormat& format, const SafetensorsFile& scales, const TensorInfo& scale)
      : format_(format),
        scales_(scales),
        scale_(scale),
        factors_(static_cast<size_t>(blocks_of(format.dims.back(), format.block_cols))) {}

  std::span<const float> scales_of_row(int64_t row) {
    const int64_t scale_row = scale_row_of(format_, row);
    if (scale_row != known_)
      read_scales(scales_, scale_, scale_row * std::ssize(factors_), factors_);
    known_ = scale_row;
    return factors_;
  }

 private:
  const BlockFormat& format_;
  const SafetensorsFile& scales_;
  const TensorInfo& scale_;
  std::vector<float> factors_;
  int64_t known_ = -1;  // the row of scales that is there
};

}  // namespace

std::string scan_scaled_for_unrepresentable_values(const SafetensorsFile& weights,
                                                   const TensorInfo& weight,
                                                   const BlockFormat& format,
                                                   const SafetensorsFile& scales,
                                                   const TensorInfo& scale, bool codes) {
  const bool is_fp8 = scaled_narrow_form(format, scale) == NarrowForm::kFp8;
  int64_t row = find_row_of_unfit_scale(weight, format, is_fp8, scales, scale);
  if (row < 0 && codes && is_fp8) row = find_row_of_nan(weights, weight, format.dims.back());
  return row < 0 ? std::string() : unrepresentable_row_text(weight, row);
}

void read_quantised_rows_of_scaled(const SafetensorsFile& weights, const TensorInfo& weight,
                                   const BlockFormat& format, const SafetensorsFile& scales,
                                   const TensorInfo& scale, int64_t first_row, int64_t count,
                                   std::byte* out) {
  const int64_t cols = format.dims.back();
  const int64_t stored_bytes = cols / format.elements_per_byte;  // of a row
  const NarrowForm form = scaled_narrow_form(format, scale);
  const int64_t row_bytes = narrow_layout(form).row_bytes(cols);
  std::vector<uint8_t> all(static_cast<size_t>(count * stored_bytes));
  weights.read_bytes(weight, first_row * stored_bytes, std::as_writable_bytes(std::span(all)));
  RowScales row_scales(format, scales, scale);
  const uint8_t* stored = all.data();
  for (int64_t row = first_row; row < first_row + count; ++row) {
    if (!pack_row(form, {stored, static_cast<size_t>(stored_bytes)}, row_scales.scales_of_row(row),
                  format, out)) {
      throw Error(ErrorCode::kInvalidArgument,
                  unrepresentable_row_text(weight, row) + "; --weights bf16");
    }
    stored += stored_bytes;
    out += row_bytes;
  }
}

}  // namespace strata
