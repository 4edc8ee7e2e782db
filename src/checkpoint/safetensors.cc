// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/file_kind.h"
#include "text/json_reader.h"

namespace strata {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are read as they are");

struct DTypeRow {
  std::string_view name;
  int64_t bits;
};
constexpr std::array<DTypeRow, 22> kDTypes = {{
    {"F32", 32},        {"F16", 16},        {"BF16", 16}, {"F64", 64},    {"I64", 64},
    {"U64", 64},        {"I32", 32},        {"U32", 32},  {"I16", 16},    {"U16", 16},
    {"I8", 8},          {"U8", 8},          {"BOOL", 8},  {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8},     {"C64", 64},        {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
}};

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, what));
}

[[noreturn]] void fail(const std::string& path, const TensorInfo& info, const std::string& what) {
  fail(path, fmt::format("tensor '{}': {}", info.name, what));
}

uint64_t read_header_length(const ReadOnlyFile& file) {
  const int64_t size = file.size();
  if (size < 8) {
    fail(file.path(), fmt::format("{} bytes are too few for a safetensors file; truncated?", size));
  }
  uint64_t length = 0;
  file.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    const FileKind kind = kind_of_file(file.path());
    if (kind.what == kGitLfsPointer.what) fail(file.path(), describe_file_kind(kind));
    fail(file.path(),
         fmt::format("header length {}, at most {} is accepted; not a safetensors file?", length,
                     kMaxSafetensorsHeader));
  }
  if (length > static_cast<uint64_t>(size - 8)) {
    fail(file.path(), fmt::format("header length {}, but only {} bytes follow it; truncated?",
                                  length, size - 8));
  }
  return length;
}

std::string read_header(const ReadOnlyFile& file) {
  std::string header(read_header_length(file), '\0');
  file.read_at(8, std::as_writable_bytes(std::span(header.data(), header.size())));
  if (header.empty() || header[0] != '{') {
    fail(file.path(), "the header does not start with '{'; not a safetensors file?");
  }
  return header;
}

int64_t read_natural(text::JsonReader& json) {
  const int64_t value = json.read_integer();
  if (value < 0) json.fail(fmt::format("got {}, wanted a number that is not negative", value));
  return value;
}

void parse_offsets(text::JsonReader& json, TensorInfo& info) {
  std::array<int64_t, 2> offsets{};
  size_t count = 0;
  json.begin_array();
  while (json.next_item()) {
    if (count == offsets.size()) json.fail("data_offsets wants two numbers");
    offsets[count++] = read_natural(json);
  }
  if (count != offsets.size()) json.fail("data_offsets wants two numbers");
  info.begin = offsets[0];
  info.end = offsets[1];
}

TensorInfo parse_tensor(text::JsonReader& json, std::string name) {
  TensorInfo info;
  info.name = std::move(name);
  bool has_dtype = false, has_shape = false, has_offsets = false;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "dtype") {
      info.dtype_name = json.read_string();
      has_dtype = true;
    } else if (key == "shape") {
      json.begin_array();
      while (json.next_item()) info.dims.push_back(read_natural(json));
      has_shape = true;
    } else if (key == "data_offsets") {
      parse_offsets(json, info);
      has_offsets = true;
    } else {
      json.fail(fmt::format("tensor '{}': unknown key {}", info.name, text::json_quote(key)));
    }
  }
  if (!has_dtype || !has_shape || !has_offsets) {
    json.fail(fmt::format("tensor '{}': wants dtype, shape and data_offsets", info.name));
  }
  return info;
}

void parse_metadata(text::JsonReader& json, std::map<std::string, std::string>& metadata) {
  json.begin_object();
  for (std::string name; json.next_key(name);) metadata[name] = json.read_string();
}

// Elements of a shape; refuses one whose axes overflow even where another axis is zero, so that
// products of any of its axes are safe from here on.
int64_t count_elements(const std::string& path, const TensorInfo& info) {
  int64_t product = 1;
  bool zero = false;
  for (const int64_t dim : info.dims) {
    if (dim == 0) {
      zero = true;
    } else if (__builtin_mul_overflow(product, dim, &product)) {
      fail(path, info,
           fmt::format("shape {} has more elements than 64 bits can count", info.shape_text()));
    }
  }
  return zero ? 0 : product;
}

// Sets dtype and shape where we can read values of that type; else it stays unreadable.
void resolve_dtype(TensorInfo& info) {
  if (info.dims.size() > kMaxRank) return;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (dtype_name(dtype) != info.dtype_name) continue;
    info.dtype = dtype;
    for (const int64_t dim : info.dims) info.shape.push_back(dim);
    info.readable = true;
  }
}

// `data_bytes`: the bytes after the header.
void check_data_offsets(const std::string& path, const TensorInfo& info, int64_t data_bytes) {
  if (info.begin > info.end || info.end > data_bytes) {
    fail(path, info,
         fmt::format("data_offsets [{}, {}] in {} bytes of data; truncated?", info.begin, info.end,
                     data_bytes));
  }
  const int64_t elements = count_elements(path, info);
  const int64_t bits = safetensors_dtype_bits(info.dtype_name);
  int64_t wanted = 0;
  if (bits > 0 && (__builtin_mul_overflow(elements, bits, &wanted) || wanted % 8 != 0 ||
                   wanted / 8 != info.num_bytes())) {
    fail(path, info,
         fmt::format("{} {} does not fill the {} bytes of data_offsets [{}, {}]", info.dtype_name,
                     info.shape_text(), info.num_bytes(), info.begin, info.end));
  }
}

// Offsets in the data become positions in the file.
void resolve_offsets(TensorInfo& info, int64_t data_begin) {
  info.begin += data_begin;
  info.end += data_begin;
}

void sort_by_position(std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
}

// Tensors are in order here; they must fill the file from the header to its end.
void check_gapless(const std::string& path, std::span<const TensorInfo> tensors, int64_t begin,
                   int64_t end) {
  int64_t position = begin;
  for (const TensorInfo& info : tensors) {
    if (info.begin != position) {
      fail(path, info,
           fmt::format("starts at byte {}, but the tensor before it ends at {}: {}", info.begin,
                       position, info.begin < position ? "they overlap" : "a hole between them"));
    }
    position = info.end;
  }
  if (position != end) {
    fail(path, fmt::format("{} bytes after the last tensor belong to none", end - position));
  }
}

}  // namespace

int64_t safetensors_dtype_bits(std::string_view dtype_name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == dtype_name) return row.bits;
  }
  return 0;
}

std::string TensorInfo::shape_text() const { return fmt::format("[{}]", fmt::join(dims, ", ")); }

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const std::string header = read_header(file_);
  const auto data_begin = static_cast<int64_t>(8 + header.size());
  text::JsonReader json(header, path + ": header");
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "__metadata__") {
      parse_metadata(json, metadata_);
    } else {
      TensorInfo& info = tensors_.emplace_back(parse_tensor(json, std::move(key)));
      check_data_offsets(path, info, file_.size() - data_begin);
      resolve_offsets(info, data_begin);
      resolve_dtype(info);
    }
  }
  json.end();
  sort_by_position(tensors_);
  check_gapless(path, tensors_, data_begin, file_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read(const TensorInfo& info, int64_t first_element, int64_t count,
                           void* raw_out) const {
  if (!info.readable) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: tensor '{}': {} {} cannot be read; wanted F32, F16 or BF16 with at most "
                    "{} axes",
                    path(), info.name, info.dtype_name, info.shape_text(), kMaxRank));
  }
  CHECK(0 <= first_element && 0 <= count && first_element <= info.shape.num_elements() - count,
        first_element, count, info.shape.num_elements());
  const int64_t bytes = dtype_bytes(info.dtype);
  file_.read_at(info.begin + first_element * bytes,
                {static_cast<std::byte*>(raw_out), static_cast<size_t>(count * bytes)});
}

void SafetensorsFile::read_bytes(const TensorInfo& info, int64_t first_byte,
                                 std::span<std::byte> out) const {
  const auto count = static_cast<int64_t>(out.size());
  CHECK(0 <= first_byte && first_byte <= info.num_bytes() - count, first_byte, count,
        info.num_bytes());
  file_.read_at(info.begin + first_byte, out);
}

void SafetensorsFile::read_f32(const TensorInfo& info, int64_t first_element, int64_t count,
                               float* out) const {
  if (!info.readable || info.dtype == DType::kF32) return read(info, first_element, count, out);
  constexpr int64_t kChunk = 1 << 16;
  std::vector<uint16_t> chunk(static_cast<size_t>(std::min(count, kChunk)));
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t part = std::min(kChunk, count - done);
    read(info, first_element + done, part, chunk.data());
    for (int64_t i = 0; i < part; ++i) {
      const uint16_t bits = chunk[static_cast<size_t>(i)];
      out[done + i] = info.dtype == DType::kF16 ? f16_to_float(bits) : to_float(Bf16{bits});
    }
  }
}

}  // namespace strata
