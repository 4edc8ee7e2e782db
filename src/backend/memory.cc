// SPDX-License-Identifier: Apache-2.0
#include "backend/memory.h"

#include <utility>

#include "base/check.h"

namespace strata {

Memory::Memory(Allocator& allocator, int64_t bytes) : allocator_(&allocator), size_(bytes) {
  CHECK(bytes >= 0, bytes);
  if (bytes > 0) data_ = allocator.allocate(bytes);
}

Memory::~Memory() {
  if (data_ != nullptr) allocator_->release(data_, size_);
}

Memory::Memory(Memory&& other) noexcept
    : allocator_(other.allocator_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace strata
