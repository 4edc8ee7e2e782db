// SPDX-License-Identifier: Apache-2.0
// GgufHeader: what stands before the data of a GGUF file (version 3, little-endian), made key by
// key and tensor by tensor. Keys are written in the order in which they were added.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf/types.h"

namespace strata {

class GgufHeader {
 public:
  static constexpr int64_t kAlignment = 32;

  struct Tensor {
    std::string name;
    const GgufType* type = nullptr;
    std::vector<int64_t> dims;  // as torch has them
    int64_t offset = 0;         // in the data
    int64_t bytes = 0;          // without what aligns the next one
  };

  void add_integer(std::string_view key, int64_t value);  // u32
  void add_signed(std::string_view key, int32_t value);   // i32
  void add_number(std::string_view key, double value);    // f32
  void add_boolean(std::string_view key, bool value);
  void add_text(std::string_view key, std::string_view value);
  void add_integers(std::string_view key, std::span<const int64_t> values);  // i32
  void add_numbers(std::string_view key, std::span<const double> values);    // f32
  void add_booleans(std::string_view key, const std::vector<bool>& values);
  void add_texts(std::string_view key, std::span<const std::string> values);

  // The data follow in this order. A row must be whole blocks; CHECKed.
  void add_tensor(std::string name, const GgufType& type, std::vector<int64_t> dims);
  [[nodiscard]] std::span<const Tensor> tensors() const { return tensors_; }
  // Bytes of all data.
  [[nodiscard]] int64_t data_bytes() const { return data_bytes_; }

  // The file's bytes up to its data.
  [[nodiscard]] std::string serialise() const;

 private:
  void add_key(std::string_view name, uint32_t type);
  void begin_list(std::string_view name, uint32_t type, size_t count);

  std::string keys_;
  uint64_t num_keys_ = 0;
  std::vector<Tensor> tensors_;
  int64_t data_bytes_ = 0;
};

}  // namespace strata
