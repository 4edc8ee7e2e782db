// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"

#include <utility>

#include "backend/offload_space.h"
#include "base/threads.h"

namespace strata {

Backend::Backend(const BackendKind& kind, Allocator& allocator)
    : kind_(kind),
      allocator_(allocator),
      scratch_(kind.counts ? Scratch::counting(Scratch::Counted::kPass) : Scratch(allocator)) {}

Backend::~Backend() = default;

void Backend::run_on_host(int64_t count, FunctionRef<void(int64_t item)> body) {
  for (int64_t i = 0; i < count; ++i) body(i);
}

Scratch& Backend::file_scratch() {
  CHECK(has_files());
  return kind_.counts ? counted_files_ : offload_->scratch();
}

void Backend::offload_to(const std::string& dir) {
  offload_ = std::make_unique<OffloadSpace>(*this, dir);
}

std::unique_ptr<PageQueue> Backend::page_queue(const std::string& name,
                                               FileAllocator& files) const {
  return std::make_unique<PageMover>(name, files);
}

void Backend::let_in() {
  const Interruption* breaks = std::exchange(breaks_, nullptr);
  if (breaks->is_due()) breaks->run();
  breaks_ = breaks;
}

void Backend::reset_count() {
  counted_flops_ = 0.0;
  scratch_.book(0);
  counted_files_.book(0);
  book_workers(0);
}

}  // namespace strata
