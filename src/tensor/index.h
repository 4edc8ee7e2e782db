// SPDX-License-Identifier: Apache-2.0
// IndexView: borrowed whole numbers in tensor memory: rows, entries, experts, and where groups end.
// As a TensorView it owns nothing and is passed by value, and what it views is read and written by
// ops. A list in the host's memory is a std::span; neither becomes the other by itself, so that a
// list of the host where tensor memory is meant does not compile (tests/ops/host_list_compile.inc).
#pragma once
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/check.h"

namespace strata {

template <typename T>
class IndexView {
  static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>);

 public:
  IndexView() = default;
  // `count` numbers of tensor memory from `memory` on.
  IndexView(void* memory, int64_t count) : data_(static_cast<T*>(memory)), size_(count) {
    DCHECK(count >= 0, count);
  }

  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] int64_t num_bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  [[nodiscard]] void* data() const { return data_; }
  // For who may read and write the memory: a kind of backend's functions.
  [[nodiscard]] std::span<T> numbers() const { return {data_, static_cast<size_t>(size_)}; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace strata
