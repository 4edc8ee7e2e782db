// SPDX-License-Identifier: Apache-2.0
// SharedMemory: one piece of memory that a process fills and others of its machine read, which
// takes the machine's memory once. It has no name: others find it by the process that filled it,
// and it goes when the last that has it ends, however it ends. What any of them writes there, once
// it is published, is a copy of its own, page by page. Engine thread only.
#pragma once
#include <cstdint>

#include "backend/memory.h"

namespace strata {

// Where a process of the machine has published memory. Plain values, to be sent to others.
struct SharedPlace {
  int64_t process = 0;
  int64_t descriptor = -1;
  uint64_t device = 0, file = 0;  // that the descriptor is to be
  int64_t bytes = 0;
};

class SharedMemory : public Allocator {
 public:
  // To be filled.
  SharedMemory() = default;
  // What another process has published, and still has. Error{kIo} where it cannot be read here, as
  // what never was.
  explicit SharedMemory(const SharedPlace& place);
  ~SharedMemory() override;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Whether another process has filled it.
  [[nodiscard]] bool is_filled() const { return is_filled_; }
  // Once, and of what is filled just as many bytes, else Error{kInvalidArgument}.
  // Error{kResourceExhausted}.
  void* allocate(int64_t bytes) override;
  void release(void* data, int64_t bytes) override;
  // The place of what was filled here. Others may have it from now on, and nobody can change it.
  SharedPlace publish();

 private:
  void make_file(int64_t bytes);

  int descriptor_ = -1;
  bool is_filled_ = false;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace strata
