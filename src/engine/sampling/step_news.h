// SPDX-License-Identifier: Apache-2.0
// StepNews: what the logits of a step gave, which only the stage that ends the model has, for the
// other ranks: written there value by value, and read by them in the same order.
#pragma once
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "base/check.h"

namespace strata::engine {

class StepNews {
 public:
  void begin_writing() {
    bytes_.clear();
    writes_ = true;
  }
  void begin_reading() {
    at_ = 0;
    writes_ = false;
  }
  [[nodiscard]] std::string& bytes() { return bytes_; }

  // Writes the values, or overwrites them with what was written.
  template <typename T>
  void sync_value(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (values.empty()) return;
    if (writes_) {
      bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
      return;
    }
    CHECK(bytes_.size() - at_ >= values.size_bytes(), bytes_.size(), at_);
    std::memcpy(values.data(), bytes_.data() + at_, values.size_bytes());
    at_ += values.size_bytes();
  }
  template <typename T>
  void sync_value(T& value) {
    sync_value(std::span<T>(&value, 1));
  }
  void sync_value(std::string& text) {
    size_t size = text.size();
    sync_value(size);
    if (!writes_) text.resize(size);
    sync_value(std::span<char>(text));
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
  bool writes_ = false;
};

}  // namespace strata::engine
