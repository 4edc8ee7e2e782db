// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf/gguf_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <unordered_set>

#include "base/check.h"
#include "base/error.h"

namespace strata {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::string_view kAlignment = "general.alignment";
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr size_t kMaxName = 1 << 16;
constexpr int64_t kMaxAlignment = 1 << 20;

// Types of values, by their ids.
enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kNumTypes
};
constexpr int kBytes[kNumTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};  // at least

// The header from its first byte on, through a buffer.
class HeaderReader {
 public:
  explicit HeaderReader(const ReadOnlyFile& file) : file_(file) {}

  [[nodiscard]] int64_t position() const { return begin_ + static_cast<int64_t>(at_); }
  [[nodiscard]] int64_t left() const { return limit() - position(); }

  // For messages: of what is too long.
  [[nodiscard]] std::string left_text() const {
    return fmt::format("{} bytes are left{}", left(),
                       file_.size() > limit() ? " of the largest header" : "; truncated?");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: byte {}: {}", file_.path(), position(), what));
  }

  // `what` is being read, for messages.
  void read_bytes(std::span<std::byte> out, std::string_view what) {
    if (std::ssize(out) > left())
      fail(fmt::format("{} needs {} bytes, {}", what, out.size(), left_text()));
    for (size_t done = 0; done < out.size();) {
      if (at_ == buffer_.size()) refill();
      const size_t part = std::min(out.size() - done, buffer_.size() - at_);
      std::memcpy(out.data() + done, buffer_.data() + at_, part);
      at_ += part;
      done += part;
    }
  }

  template <typename T>
  T read(std::string_view what) {
    T out;
    read_bytes(std::as_writable_bytes(std::span(&out, 1)), what);
    return out;
  }

  std::string read_text(std::string_view what) {
    const auto size = read<uint64_t>(what);
    if (size > static_cast<uint64_t>(left()))
      fail(fmt::format("{} has {} bytes, {}", what, size, left_text()));
    std::string out(size, '\0');
    read_bytes(std::as_writable_bytes(std::span(out)), what);
    return out;
  }

 private:
  [[nodiscard]] int64_t limit() const { return std::min(file_.size(), GgufFile::kMaxHeader); }
  void refill() {
    constexpr int64_t kBuffer = 1 << 20;
    begin_ += static_cast<int64_t>(buffer_.size());
    buffer_.resize(static_cast<size_t>(std::min(kBuffer, limit() - begin_)));
    at_ = 0;
    file_.read_at(begin_, buffer_);
  }

  const ReadOnlyFile& file_;
  std::vector<std::byte> buffer_;
  int64_t begin_ = 0;  // of the buffer, in the file
  size_t at_ = 0;
};

int read_magic_and_version(HeaderReader& in) {
  const auto magic = in.read<std::array<char, 4>>("the magic");
  if (std::string_view(magic.data(), magic.size()) != kMagic) in.fail("not a GGUF file");
  const auto version = in.read<uint32_t>("the version");
  if ((version & 0xffff) == 0 && version != 0) {
    in.fail("a file of a big-endian machine, which is not supported");
  }
  if (version != 2 && version != 3) {
    in.fail(fmt::format("version {}, supported are 2 and 3{}", version,
                        version == 1 ? "; convert the model again" : ""));
  }
  return static_cast<int>(version);
}

int64_t read_integer(HeaderReader& in, uint32_t type, std::string_view key) {
  switch (type) {
    case kU8:
      return in.read<uint8_t>(key);
    case kI8:
      return in.read<int8_t>(key);
    case kU16:
      return in.read<uint16_t>(key);
    case kI16:
      return in.read<int16_t>(key);
    case kU32:
      return in.read<uint32_t>(key);
    case kI32:
      return in.read<int32_t>(key);
    case kI64:
      return in.read<int64_t>(key);
    default:
      break;
  }
  const auto value = in.read<uint64_t>(key);
  if (value > INT64_MAX) in.fail(fmt::format("key '{}': {} does not fit 63 bits", key, value));
  return static_cast<int64_t>(value);
}

bool read_bool(HeaderReader& in, std::string_view key) {
  const auto value = in.read<uint8_t>(key);
  if (value > 1) in.fail(fmt::format("key '{}': a bool is {}, want 0 or 1", key, value));
  return value == 1;
}

// `count` items of one type, which has been checked.
GgufValue read_items(HeaderReader& in, uint32_t type, uint64_t count, const std::string& key) {
  GgufValue out;
  if (type == kString) {
    GgufValue::Texts& texts = out.list.emplace<GgufValue::Texts>();
    for (uint64_t i = 0; i < count; ++i) texts.push_back(in.read_text(key));
  } else if (type == kF32 || type == kF64) {
    GgufValue::Numbers& numbers = out.list.emplace<GgufValue::Numbers>();
    out.is_f32 = type == kF32;
    for (uint64_t i = 0; i < count; ++i) {
      numbers.push_back(out.is_f32 ? in.read<float>(key) : in.read<double>(key));
    }
  } else if (type == kBool) {
    GgufValue::Booleans& booleans = out.list.emplace<GgufValue::Booleans>();
    for (uint64_t i = 0; i < count; ++i) booleans.push_back(read_bool(in, key));
  } else {
    GgufValue::Integers& integers = out.list.emplace<GgufValue::Integers>();
    for (uint64_t i = 0; i < count; ++i) integers.push_back(read_integer(in, type, key));
  }
  return out;
}

GgufValue read_list(HeaderReader& in, const std::string& key) {
  const auto item = in.read<uint32_t>(key);
  if (item >= kNumTypes || item == kArray) {
    in.fail(fmt::format("key '{}': a list of items of type {}, which is not supported", key, item));
  }
  const auto count = in.read<uint64_t>(key);
  if (count > static_cast<uint64_t>(in.left()) / static_cast<uint64_t>(kBytes[item])) {
    in.fail(fmt::format("key '{}': a list of {} items, {}", key, count, in.left_text()));
  }
  GgufValue out = read_items(in, item, count, key);
  out.is_array = true;
  return out;
}

GgufValue read_value(HeaderReader& in, const std::string& key) {
  const auto type = in.read<uint32_t>(key);
  if (type >= kNumTypes) in.fail(fmt::format("key '{}': unknown type of value {}", key, type));
  return type == kArray ? read_list(in, key) : read_items(in, type, 1, key);
}

void read_keys(HeaderReader& in, uint64_t count, GgufKeys& keys) {
  for (uint64_t i = 0; i < count; ++i) {
    std::string key = in.read_text("a key");
    if (key.empty() || key.size() > kMaxName)
      in.fail("a key without a name, or with too long a one");
    if (keys.has(key)) in.fail(fmt::format("key '{}' is there twice", key));
    GgufValue value = read_value(in, key);
    keys.add(std::move(key), std::move(value));
  }
}

const GgufType& require_type(HeaderReader& in, const std::string& name, uint32_t id) {
  const GgufType* type = find_gguf_type(id);
  if (type != nullptr) return *type;
  const bool removed = id == 4 || id == 5 || (id >= 31 && id <= 38);
  in.fail(fmt::format("tensor '{}': type {} {}; known are {}", name, id,
                      removed ? "was removed from ggml" : "is not known", readable_gguf_types()));
}

// How many elements the tensor has.
int64_t read_dimensions(HeaderReader& in, GgufTensor& tensor) {
  const auto num_dims = in.read<uint32_t>(tensor.name);
  if (num_dims < 1 || num_dims > 4) {
    in.fail(fmt::format("tensor '{}' has {} dimensions, want 1 to 4", tensor.name, num_dims));
  }
  int64_t elements = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    const auto dim = in.read<uint64_t>(tensor.name);
    if (dim == 0 || dim > INT64_MAX ||
        __builtin_mul_overflow(elements, static_cast<int64_t>(dim), &elements)) {
      in.fail(fmt::format("tensor '{}': dimension {} of {}: its elements cannot be counted",
                          tensor.name, i, dim));
    }
    tensor.dims.insert(tensor.dims.begin(), static_cast<int64_t>(dim));
  }
  return elements;
}

// `offset` in the data; the end is as far as the elements go from there.
void set_offsets(HeaderReader& in, GgufTensor& tensor, uint64_t offset, int64_t elements) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(elements / tensor.type->block_elements, tensor.type->block_bytes,
                             &bytes) ||
      offset > INT64_MAX ||
      __builtin_add_overflow(static_cast<int64_t>(offset), bytes, &tensor.end)) {
    in.fail(fmt::format("tensor '{}': more bytes than 63 bits can count", tensor.name));
  }
  tensor.begin = static_cast<int64_t>(offset);
}

void check_rows_are_whole_blocks(HeaderReader& in, const GgufTensor& tensor) {
  if (tensor.columns() % tensor.type->block_elements == 0) return;
  in.fail(fmt::format("tensor '{}': rows of {} elements are no whole blocks of {} ({})",
                      tensor.name, tensor.columns(), tensor.type->block_elements,
                      tensor.type->name));
}

// The info; begin is the offset in the data, and end begin plus the size.
GgufTensor read_tensor_info(HeaderReader& in) {
  GgufTensor tensor;
  tensor.name = in.read_text("a tensor's name");
  if (tensor.name.empty() || tensor.name.size() > kMaxName) {
    in.fail("a tensor without a name, or with too long a one");
  }
  const int64_t elements = read_dimensions(in, tensor);
  tensor.type = &require_type(in, tensor.name, in.read<uint32_t>(tensor.name));
  const auto offset = in.read<uint64_t>(tensor.name);
  check_rows_are_whole_blocks(in, tensor);
  set_offsets(in, tensor, offset, elements);
  return tensor;
}

std::vector<GgufTensor> read_tensor_infos(HeaderReader& in, uint64_t count) {
  std::vector<GgufTensor> tensors;
  std::unordered_set<std::string> names;
  for (uint64_t i = 0; i < count; ++i) {
    tensors.push_back(read_tensor_info(in));
    if (!names.insert(tensors.back().name).second) {
      in.fail(fmt::format("tensor '{}' is there twice", tensors.back().name));
    }
  }
  return tensors;
}

int64_t alignment_of(const GgufKeys& keys) {
  constexpr int64_t kDefault = 32;
  const int64_t alignment = keys.integer(kAlignment, kDefault);
  if (alignment < 1 || alignment > kMaxAlignment ||
      !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    keys.fail(kAlignment, fmt::format("got {}, want a power of two", alignment));
  }
  return alignment;
}

int64_t round_up(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

[[noreturn]] void fail_file(const ReadOnlyFile& file, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", file.path(), what));
}

// `data_bytes`: what the file has behind its header.
void check_tensor_offsets(const ReadOnlyFile& file, const GgufTensor& tensor, int64_t expected,
                          int64_t data_bytes) {
  if (tensor.begin != expected) {
    fail_file(file,
              fmt::format("tensor '{}' is at byte {} of the data, want {}, right behind the tensor "
                          "before it",
                          tensor.name, tensor.begin, expected));
  }
  if (tensor.end > data_bytes) {
    fail_file(file,
              fmt::format("tensor '{}' ends at byte {} of the data, the file has {}; truncated, or "
                          "a download that is not complete?",
                          tensor.name, tensor.end, std::max<int64_t>(0, data_bytes)));
  }
}

// Tensors lie in the order of their infos, each at the next aligned byte, to the end of the file.
void resolve_tensor_offsets(const ReadOnlyFile& file, int64_t header_end, int64_t alignment,
                            std::span<GgufTensor> tensors) {
  const int64_t data = round_up(header_end, alignment);
  int64_t expected = 0;
  for (GgufTensor& tensor : tensors) {
    check_tensor_offsets(file, tensor, expected, file.size() - data);
    expected = round_up(tensor.end, alignment);
    tensor.begin += data;
    tensor.end += data;
  }
  if (!tensors.empty() && file.size() > data + expected) {
    fail_file(file,
              fmt::format("{} bytes after the last tensor belong to none; files that were joined "
                          "with cat are no model: give the first of the parts",
                          file.size() - data - expected));
  }
}

// The one value of a list of equal ones.
template <typename List>
auto single_value(const GgufKeys& keys, std::string_view key, const GgufValue* value,
                  std::string_view wanted) {
  using Item = typename List::value_type;
  const List* list = value == nullptr ? nullptr : std::get_if<List>(&value->list);
  if (list == nullptr || list->empty()) {
    const char* got = value == nullptr     ? "nothing"
                      : value->size() == 0 ? "an empty list"
                                           : "another type";
    keys.fail(key, fmt::format("got {}, want {}", got, wanted));
  }
  const Item first = list->front();
  for (const auto& item : *list) {
    if constexpr (std::is_floating_point_v<Item>) {
      if (!std::isfinite(item)) keys.fail(key, fmt::format("got {}, want a finite number", item));
    }
    if (item != first) keys.fail(key, "differs by layer, which is not supported");
  }
  return first;
}

}  // namespace

const GgufValue* GgufKeys::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void GgufKeys::add(std::string key, GgufValue value) {
  values_.emplace(std::move(key), std::move(value));
}

void GgufKeys::fail(std::string_view key, const std::string& what) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: key '{}': {}", where_, key, what));
}

int64_t GgufKeys::integer(std::string_view key, std::optional<int64_t> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  return single_value<GgufValue::Integers>(*this, key, value, "a whole number");
}

double GgufKeys::number(std::string_view key, std::optional<double> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  const double number = single_value<GgufValue::Numbers>(*this, key, value, "a number");
  // The shortest decimal of 32 bits is what the writer's double was.
  if (!value->is_f32) return number;
  return std::stod(fmt::format("{}", static_cast<float>(number)));
}

bool GgufKeys::boolean(std::string_view key, std::optional<bool> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  return single_value<GgufValue::Booleans>(*this, key, value, "true or false");
}

std::string GgufKeys::text(std::string_view key, std::optional<std::string> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  return single_value<GgufValue::Texts>(*this, key, value, "a text");
}

std::span<const int64_t> GgufKeys::integers(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return {};
  const auto* list = std::get_if<GgufValue::Integers>(&value->list);
  if (list == nullptr) fail(key, "want a list of whole numbers");
  return *list;
}

std::span<const double> GgufKeys::numbers(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return {};
  const auto* list = std::get_if<GgufValue::Numbers>(&value->list);
  if (list == nullptr) fail(key, "want a list of numbers");
  return *list;
}

std::span<const std::string> GgufKeys::texts(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return {};
  const auto* list = std::get_if<GgufValue::Texts>(&value->list);
  if (list == nullptr) fail(key, "want a list of texts");
  return *list;
}

std::vector<bool> GgufKeys::booleans(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return {};
  if (const auto* list = std::get_if<GgufValue::Booleans>(&value->list)) return *list;
  std::vector<bool> out;
  for (const int64_t item : integers(key)) {
    if (item != 0 && item != 1) fail(key, fmt::format("got {}, want 0 or 1", item));
    out.push_back(item == 1);
  }
  return out;
}

int64_t GgufTensor::rows() const {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < dims.size(); ++i) rows *= dims[i];
  return rows;
}

GgufFile::GgufFile(const std::string& path) : file_(path), keys_(path) {
  HeaderReader in(file_);
  version_ = read_magic_and_version(in);
  const auto num_tensors = in.read<uint64_t>("the number of tensors");
  const auto num_keys = in.read<uint64_t>("the number of keys");
  if (num_tensors > kMaxTensors || num_keys > kMaxKeys) {
    in.fail(fmt::format("{} tensors and {} keys, at most {} and {} are accepted", num_tensors,
                        num_keys, kMaxTensors, kMaxKeys));
  }
  read_keys(in, num_keys, keys_);
  tensors_ = read_tensor_infos(in, num_tensors);
  resolve_tensor_offsets(file_, in.position(), alignment_of(keys_), tensors_);
}

void GgufFile::read_bytes(const GgufTensor& tensor, int64_t first_byte,
                          std::span<std::byte> out) const {
  CHECK(0 <= first_byte && first_byte <= tensor.end - tensor.begin - std::ssize(out), first_byte,
        out.size(), tensor.end - tensor.begin);
  file_.read_at(tensor.begin + first_byte, out);
}

bool has_gguf_magic(const std::string& path) {
  const ReadOnlyFile file(path);
  std::array<char, 4> magic = {};
  if (file.size() < std::ssize(magic)) return false;
  file.read_at(0, std::as_writable_bytes(std::span(magic)));
  return std::string_view(magic.data(), magic.size()) == kMagic;
}

}  // namespace strata
