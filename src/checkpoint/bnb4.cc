// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/bnb4.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>

#include "base/error.h"
#include "checkpoint/narrow_scale.h"
#include "tensor/rounded.h"
#include "text/json_reader.h"

namespace strata {
namespace {

constexpr std::string_view kStates[] = {".quant_state.bitsandbytes__nf4",
                                        ".quant_state.bitsandbytes__fp4"};
constexpr int64_t kMostStateBytes = 1 << 16;
constexpr int64_t kNarrowBlock = 64;  // columns of one scale of NarrowForm::kNf4 and kFp4
constexpr int64_t kElementsAtOnce = int64_t{8} << 20;

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("tensor '{}': {}", name, what));
}

DType parse_dtype(const std::string& name, const std::string& of) {
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name == "float32") return DType::kF32;
  refuse(of, fmt::format("dtype '{}', want bfloat16, float16 or float32", name));
}

void parse_shape(text::JsonReader& json, const std::string& name, Bnb4& out) {
  std::vector<int64_t> shape;
  json.begin_array();
  while (json.next_item()) shape.push_back(json.read_integer());
  if (shape.size() != 2) refuse(name, fmt::format("shape of {} axes, want 2", shape.size()));
  out.rows = shape[0], out.cols = shape[1];
}

void check_sizes(const Bnb4& state, bool nested, const std::string& name) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const auto is_size = [](int64_t size) { return size >= 1 && size <= kMost; };
  if (is_size(state.block) && is_size(state.rows) && is_size(state.cols) &&
      (!nested || is_size(state.nested_block))) {
    return;
  }
  refuse(name, fmt::format("blocks of {} ({}) of [{}, {}]: want numbers above 0 and at most 2^31",
                           state.block, state.nested_block, state.rows, state.cols));
}

// What the JSON of a state says; a `nested_block` above 0 where scales are nested.
void parse_state(const std::string& text, const std::string& name, Bnb4& out) {
  text::JsonReader json(text, name);
  bool nested = false;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "blocksize") {
      out.block = json.read_integer();
    } else if (key == "dtype") {
      out.dtype = parse_dtype(json.read_string(), name);
    } else if (key == "shape") {
      parse_shape(json, name, out);
    } else if (key == "nested_blocksize") {
      out.nested_block = json.read_integer();
      nested = true;
    } else if (key == "nested_offset") {
      out.offset = static_cast<float>(json.read_number());
    } else if (key == "nested_dtype") {
      if (json.read_string() != "float32") refuse(name, "nested_dtype: want float32");
    } else {
      json.skip();
    }
  }
  json.end();
  check_sizes(out, nested, name);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// With a null `info` where there is none.
StoredTensorRef find_state(const FindStored& find, const std::string& weight) {
  StoredTensorRef state;
  for (const std::string_view suffix : kStates) {
    if (state.info == nullptr) state = find(fmt::format("{}{}", weight, suffix));
  }
  return state;
}

std::string read_state_text(const StoredTensorRef& state) {
  if (state.info->dtype_name != "U8" || state.info->num_bytes() > kMostStateBytes) {
    refuse(state.info->name,
           fmt::format("{} {}, want JSON in U8", state.info->dtype_name, state.info->shape_text()));
  }
  std::string text(static_cast<size_t>(state.info->num_bytes()), '\0');
  state.file->read_bytes(*state.info, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

// A tensor of so many elements of a type.
StoredTensorRef require_part(const FindStored& find, const std::string& name,
                             std::string_view dtype, int64_t count) {
  const StoredTensorRef part = find(name);
  if (part.info == nullptr) refuse(name, "is missing; want it next to the weight of bitsandbytes");
  const int64_t bytes = count * (dtype == "U8" ? 1 : 4);
  if (part.info->dtype_name != dtype || part.info->num_bytes() != bytes) {
    refuse(name, fmt::format("{} {}, want {} elements of {}", part.info->dtype_name,
                             part.info->shape_text(), count, dtype));
  }
  return part;
}

std::vector<float> read_floats(const StoredTensorRef& part) {
  std::vector<float> values(static_cast<size_t>(part.info->num_bytes()) / sizeof(float));
  part.file->read_bytes(*part.info, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

// Element `i`'s of the two in a byte: the first is in the high half.
uint8_t code_of(uint8_t byte, int64_t i) { return i % 2 == 0 ? byte >> 4 : byte & 15; }

// The scales of blocks [first, first + out.size()).
void read_absmax(const Bnb4& state, const SafetensorsFile& file, int64_t first,
                 std::span<float> out) {
  if (state.nested_map.empty()) {
    return file.read_bytes(state.absmax, first * 4, std::as_writable_bytes(out));
  }
  std::vector<uint8_t> codes(out.size());
  file.read_bytes(state.absmax, first, std::as_writable_bytes(std::span(codes)));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto nested = static_cast<size_t>((first + static_cast<int64_t>(i)) / state.nested_block);
    const float product = state.nested_map[codes[i]] * state.nested_absmax[nested];
    out[i] = product + state.offset;
  }
}

// The form whose values are those of the map, bit by bit.
NarrowForm narrow_form_of(const Bnb4& state) {
  // Values of float16 files are rounded twice.
  if (state.cols % kNarrowBlock != 0 || state.block % kNarrowBlock != 0 ||
      state.dtype == DType::kF16) {
    return NarrowForm::kNone;
  }
  for (const NarrowForm form : {NarrowForm::kNf4, NarrowForm::kFp4}) {
    if (std::memcmp(narrow_layout(form).values, state.map.data(), sizeof(state.map)) == 0) {
      return form;
    }
  }
  return NarrowForm::kNone;
}

void unpack_codes(const uint8_t* from, int64_t cols, std::byte* out) {
  for (int64_t i = 0; i < cols; ++i) out[i] = static_cast<std::byte>(code_of(from[i / 2], i));
}

std::string unrepresentable_scale_text(const TensorInfo& weight, int64_t row, float scale) {
  return fmt::format("tensor '{}.absmax': row {} has {}, with which weights do not stay in 4 bits",
                     weight.name, row, scale);
}

}  // namespace

std::vector<std::string> bnb4_part_names(std::string_view weight) {
  std::vector<std::string> names;
  for (const std::string_view suffix :
       {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"}) {
    names.push_back(fmt::format("{}{}", weight, suffix));
  }
  for (const std::string_view suffix : kStates)
    names.push_back(fmt::format("{}{}", weight, suffix));
  return names;
}

namespace {

void check_num_bytes(const TensorInfo& weight, const Bnb4& state) {
  if (weight.num_bytes() == ceil_div(state.rows * state.cols, 2)) return;
  refuse(weight.name, fmt::format("{} bytes, and its state says [{}, {}] in 4 bits",
                                  weight.num_bytes(), state.rows, state.cols));
}

// Where the scales are, the values of codes and, where they are nested, what gives the scales.
void read_parts(const FindStored& find, const std::string& name, Bnb4& state) {
  const bool nested = state.nested_block > 0;
  const int64_t blocks = ceil_div(state.rows * state.cols, state.block);
  const StoredTensorRef absmax =
      require_part(find, name + ".absmax", nested ? "U8" : "F32", blocks);
  state.absmax = *absmax.info;
  state.absmax_shard = absmax.shard;
  const std::vector<float> map = read_floats(require_part(find, name + ".quant_map", "F32", 16));
  std::copy(map.begin(), map.end(), state.map.begin());
  if (!nested) return;
  state.nested_map = read_floats(require_part(find, name + ".nested_quant_map", "F32", 256));
  state.nested_absmax = read_floats(
      require_part(find, name + ".nested_absmax", "F32", ceil_div(blocks, state.nested_block)));
}

}  // namespace

std::shared_ptr<const Bnb4> read_bnb4_state(const TensorInfo& weight, const FindStored& find) {
  const StoredTensorRef state = find_state(find, weight.name);
  if (weight.dtype_name != "U8" || state.info == nullptr) return nullptr;
  auto out = std::make_shared<Bnb4>();
  parse_state(read_state_text(state), state.info->name, *out);
  out->type = state.info->name.substr(state.info->name.size() - 3);
  check_num_bytes(weight, *out);
  read_parts(find, weight.name, *out);
  out->form = narrow_form_of(*out);
  return out;
}

namespace {

// What is stored of some elements: their codes and their blocks' scales.
struct Piece {
  int64_t first_byte = 0, first_block = 0;
  std::vector<uint8_t> bytes;
  std::vector<float> scales;

  [[nodiscard]] uint8_t code(int64_t element) const {
    return code_of(bytes[static_cast<size_t>(element / 2 - first_byte)], element);
  }
  [[nodiscard]] float scale(int64_t element, int64_t block_size) const {
    return scales[static_cast<size_t>(element / block_size - first_block)];
  }
};

void read_piece(const Bnb4& state, const SafetensorsFile& weights, const TensorInfo& weight,
                const SafetensorsFile& absmax, int64_t begin, int64_t end, Piece& piece) {
  piece.first_byte = begin / 2;
  piece.bytes.resize(static_cast<size_t>((end - 1) / 2 + 1 - piece.first_byte));
  weights.read_bytes(weight, piece.first_byte, std::as_writable_bytes(std::span(piece.bytes)));
  piece.first_block = begin / state.block;
  piece.scales.resize(static_cast<size_t>((end - 1) / state.block + 1 - piece.first_block));
  read_absmax(state, absmax, piece.first_block, piece.scales);
}

}  // namespace

void read_bnb4_values(const Bnb4& state, const SafetensorsFile& weights, const TensorInfo& weight,
                      const SafetensorsFile& absmax, int64_t first, int64_t count, float* out) {
  Piece piece;
  for (int64_t begin = first; begin < first + count; begin += kElementsAtOnce) {
    const int64_t end = std::min(first + count, begin + kElementsAtOnce);
    read_piece(state, weights, weight, absmax, begin, end, piece);
    for (int64_t i = begin; i < end; ++i) {
      *out++ = rounded_to(state.map[piece.code(i)] * piece.scale(i, state.block), state.dtype);
    }
  }
}

namespace {

// Row `row`, which `piece` has from byte `first` on, in the state's form; the first scale that this
// does not hold, or nothing.
std::optional<float> pack_row(const Bnb4& state, const Piece& piece, int64_t row, int64_t first,
                              std::span<std::byte> out) {
  unpack_codes(piece.bytes.data() + first, state.cols, out.data());
  const auto scale_at = [&](int64_t col) {
    return piece.scale(row * state.cols + col, state.block);
  };
  return pack_row_scales(scale_at, kNarrowBlock, state.cols,
                         out.subspan(static_cast<size_t>(state.cols)));
}

}  // namespace

std::string scan_bnb4_for_unrepresentable_scales(const Bnb4& state, const TensorInfo& weight,
                                                 const SafetensorsFile& absmax) {
  const int64_t blocks = ceil_div(state.rows * state.cols, state.block);
  std::vector<float> scales;
  for (int64_t first = 0; first < blocks; first += std::ssize(scales)) {
    scales.resize(static_cast<size_t>(std::min(blocks - first, kElementsAtOnce)));
    read_absmax(state, absmax, first, scales);
    const auto bad = std::find_if_not(scales.begin(), scales.end(), fits_narrow);
    if (bad == scales.end()) continue;
    return unrepresentable_scale_text(
        weight, (first + (bad - scales.begin())) * state.block / state.cols, *bad);
  }
  return {};
}

void read_quantised_rows_of_bnb4(const Bnb4& state, const SafetensorsFile& weights,
                                 const TensorInfo& weight, const SafetensorsFile& absmax,
                                 int64_t first_row, int64_t count, std::byte* out) {
  const int64_t cols = state.cols;
  Piece piece;
  read_piece(state, weights, weight, absmax, first_row * cols, (first_row + count) * cols, piece);
  const int64_t row_bytes = narrow_layout(state.form).row_bytes(cols);
  for (int64_t r = 0; r < count; ++r, out += row_bytes) {
    const int64_t row = first_row + r;
    if (const auto unfit = pack_row(state, piece, row, r * cols / 2, {out, out + row_bytes})) {
      throw Error(ErrorCode::kInvalidArgument,
                  unrepresentable_scale_text(weight, row, *unfit) + "; --weights bf16");
    }
  }
}

}  // namespace strata
