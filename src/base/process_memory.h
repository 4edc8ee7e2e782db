// SPDX-License-Identifier: Apache-2.0
// What this process has in memory now, as the kernel counts it, and what it may have. Any thread.
#pragma once
#include <cstdint>
#include <string>

namespace strata {

struct ProcessMemory {
  int64_t anonymous = 0;  // its own: what a plan of memory counts
  int64_t files = 0;      // mapped from files, which the kernel may drop
};

ProcessMemory read_process_memory();

// All that is resident, in bytes; 0 where the system does not say.
int64_t read_resident_bytes();

// The machine's, or what the control groups that the process is in leave of it (a container's
// limit, a service's MemoryMax). With other folders in place of / for tests.
int64_t read_usable_memory(const std::string& root = "");  // bytes

}  // namespace strata
