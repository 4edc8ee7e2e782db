// SPDX-License-Identifier: Apache-2.0
// SafetensorsFile: a read-only safetensors file. The constructor reads and checks the whole header
// (every length, offset, shape and name) and no tensor data; reads go through pread in slices, so
// memory does not grow with the file, and a file that shrinks meanwhile is an Error and not a
// signal. Any thread may read. Format: 8 bytes little-endian length, a JSON header of that length,
// the tensors without gaps.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/files.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace strata {

struct TensorInfo {
  std::string name;
  std::string dtype_name;     // as written, perhaps one that we cannot read: "I64"
  std::vector<int64_t> dims;  // as written, perhaps more than kMaxRank
  bool readable =
      false;  // F32, F16 or BF16, and at most kMaxRank axes: then dtype and shape are set
  DType dtype = DType::kF32;
  Shape shape;
  int64_t begin = 0;  // in the file
  int64_t end = 0;

  [[nodiscard]] int64_t num_bytes() const { return end - begin; }
  // Bytes of a whole number where the tensor holds such, I32 or I64; else 0. It is not readable.
  [[nodiscard]] int integer_bytes() const {
    return dtype_name == "I64" ? 8 : dtype_name == "I32" ? 4 : 0;
  }
  [[nodiscard]] std::string shape_text() const;  // "[2, 3]"
};

// The most bytes a header may have, the limit of the safetensors package.
constexpr int64_t kMaxSafetensorsHeader = 100'000'000;
// What one read should ask for at most, so that loading stays within the model plus one slice.
constexpr int64_t kMaxSliceBytes = int64_t{256} << 20;

// Bits of an element of the named dtype; 0 when the name is unknown to us.
int64_t safetensors_dtype_bits(std::string_view dtype_name);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  // In the order of their bytes in the file.
  [[nodiscard]] std::span<const TensorInfo> tensors() const { return tensors_; }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;  // null when it is not there
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Copies `count` elements from `first_element` on, as stored (little-endian), to raw_out. An
  // Error when the tensor is not readable.
  void read(const TensorInfo& info, int64_t first_element, int64_t count, void* raw_out) const;
  // Bytes of any tensor from `first_byte` on.
  void read_bytes(const TensorInfo& info, int64_t first_byte, std::span<std::byte> out) const;
  // Reads elements widened to f32; exact for all three dtypes.
  void read_f32(const TensorInfo& info, int64_t first_element, int64_t count, float* out) const;

 private:
  ReadOnlyFile file_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace strata
