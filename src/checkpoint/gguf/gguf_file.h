// SPDX-License-Identifier: Apache-2.0
// GgufFile: the header of a GGUF file (versions 2 and 3, little-endian), read and checked whole:
// every length, count, offset, type and name; no tensor data. Reads go through pread, so a file
// that shrinks meanwhile is an Error and not a signal. Any thread may read.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/files.h"
#include "checkpoint/gguf/types.h"

namespace strata {

// A value of a key: whole numbers of every width are one kind, and so are both widths of floats.
struct GgufValue {
  using Integers = std::vector<int64_t>;
  using Numbers = std::vector<double>;
  using Booleans = std::vector<bool>;
  using Texts = std::vector<std::string>;
  // A single value is a list of one.
  std::variant<Integers, Numbers, Booleans, Texts> list;
  bool is_array = false;
  bool is_f32 = false;  // numbers that had 32 bits

  [[nodiscard]] size_t size() const {
    return std::visit([](const auto& values) { return values.size(); }, list);
  }
};

// The keys of a file by name. Faults name the file and the key.
class GgufKeys {
 public:
  explicit GgufKeys(std::string where) : where_(std::move(where)) {}

  [[nodiscard]] bool has(std::string_view key) const { return values_.contains(key); }
  // The value, or the fallback; without one an absent key is an Error. A list whose items are equal
  // counts as one value, since writers may give one for each layer.
  [[nodiscard]] int64_t integer(std::string_view key, std::optional<int64_t> fallback = {}) const;
  [[nodiscard]] double number(std::string_view key, std::optional<double> fallback = {}) const;
  [[nodiscard]] bool boolean(std::string_view key, std::optional<bool> fallback = {}) const;
  [[nodiscard]] std::string text(std::string_view key,
                                 std::optional<std::string> fallback = {}) const;
  // Lists; empty where the key is absent.
  [[nodiscard]] std::span<const int64_t> integers(std::string_view key) const;
  [[nodiscard]] std::span<const double> numbers(std::string_view key) const;
  [[nodiscard]] std::span<const std::string> texts(std::string_view key) const;
  // Lists of bools, or of numbers that are 0 or 1.
  [[nodiscard]] std::vector<bool> booleans(std::string_view key) const;

  [[nodiscard]] const std::map<std::string, GgufValue, std::less<>>& all() const { return values_; }
  [[nodiscard]] const std::string& where() const { return where_; }
  void add(std::string key, GgufValue value);
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;

 private:
  [[nodiscard]] const GgufValue* find(std::string_view key) const;

  std::string where_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

struct GgufTensor {
  std::string name;
  const GgufType* type = nullptr;
  std::vector<int64_t> dims;  // as torch has them, the last one fastest; 1 to 4
  int64_t begin = 0;          // in the file
  int64_t end = 0;

  [[nodiscard]] int64_t columns() const { return dims.back(); }
  [[nodiscard]] int64_t rows() const;
  [[nodiscard]] int64_t row_bytes() const {
    return columns() / type->block_elements * type->block_bytes;
  }
};

class GgufFile {
 public:
  // The most bytes before the data: vocabularies of a million entries have a fifth of it.
  static constexpr int64_t kMaxHeader = int64_t{256} << 20;

  explicit GgufFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] int version() const { return version_; }
  [[nodiscard]] const GgufKeys& keys() const { return keys_; }
  [[nodiscard]] std::span<const GgufTensor> tensors() const { return tensors_; }
  // Bytes of a tensor as stored, from `first_byte` on.
  void read_bytes(const GgufTensor& tensor, int64_t first_byte, std::span<std::byte> out) const;

 private:
  ReadOnlyFile file_;
  int version_ = 0;
  GgufKeys keys_;
  std::vector<GgufTensor> tensors_;
};

// Whether the file begins as GGUF files do.
bool has_gguf_magic(const std::string& path);

}  // namespace strata
