// SPDX-License-Identifier: Apache-2.0
// A backend that is late, for test programs that link these files: each op returns at once and runs
// later, in order, on another thread, when someone waits: for the host's access to tensor memory,
// for what an op returns or writes to the host's memory, or for memory that is given back to its
// allocator. Until then lists of the host have changed and scratch has been taken again many times.
// Scratch that is given back is filled with NaN, in the order of the work, and so is memory in
// files that leaves, until it is asked for again. What counts or runs on the queue's own thread
// runs at once.
#pragma once
#include <cstdint>
#include <functional>

namespace strata::deferred {

// Planted, one at a time, so that tests show that each is seen.
enum class Fault : uint8_t {
  kNone,
  kCopyUnawaited,    // to_host returns before its work is done
  kAccessUnawaited,  // HostAccess does not wait
  kNumberUnawaited,  // a sum is returned before the work that it is of is done
  kListUnstaged,     // a host list is read where its owner has it
  kWrittenTooSoon    // what is written behind is copied before the work that made it is done
};
void plant(Fault fault);
bool planted(Fault fault);

// While one lives, what this thread asks for runs at once, and waits for nothing, as on the
// queue's.
class AtOnce {
 public:
  AtOnce();
  ~AtOnce();
  AtOnce(const AtOnce&) = delete;
  AtOnce& operator=(const AtOnce&) = delete;
};
bool at_once();

// Any thread.
void later(std::function<void()> work);
// Returns when all that was asked for has run; throws what it threw.
void wait();
// A copy for the op that this thread asks for next; it ends with that work.
const void* keep(const void* list, int64_t bytes);
// Of all the program's: how many ops have been late.
int64_t num_late();

}  // namespace strata::deferred
