// SPDX-License-Identifier: Apache-2.0
// Where tensors live. An Allocator gives a backend its memory; a Memory owns one piece of it.
// The host touches what is there only while a HostAccess lives: the CPU's ops hold one, copies to
// and from the host, and files that are loaded and saved. Nothing else above ops/ does
// (tools/check/check_layers.py has the list; tests run the engine on memory that is shut otherwise,
// tests/protected/protected_memory.cc).
#pragma once
#include <cstdint>

namespace strata {

// Any thread.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // Zeroed and aligned to 64 bytes; to 2 MiB when it is that large. Error{kResourceExhausted}.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* data, int64_t bytes) = 0;
  // Around what the host does with the memory; they nest.
  virtual void begin_host_access() {}
  virtual void end_host_access() {}
};

// Pages of the machine, huge ones where they fit; always open. Defined in a file of its own, in
// whose place a test program links another.
Allocator& cpu_allocator();

class HostAccess {
 public:
  explicit HostAccess(Allocator& allocator) : allocator_(allocator) {
    allocator_.begin_host_access();
  }
  ~HostAccess() { allocator_.end_host_access(); }
  HostAccess(const HostAccess&) = delete;
  HostAccess& operator=(const HostAccess&) = delete;

 private:
  Allocator& allocator_;
};

// A piece of memory, which its owner may move (backend/file_memory.h).
struct PageRange {
  void* data = nullptr;
  int64_t bytes = 0;
};

// Owned raw memory.
class Memory {
 public:
  Memory() = default;
  Memory(Allocator& allocator, int64_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] int64_t size() const { return size_; }

 private:
  Allocator* allocator_ = nullptr;
  void* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace strata
