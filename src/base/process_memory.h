// What this process has in memory now, as the kernel counts it. Any thread.
#pragma once
#include <cstdint>

namespace strata {

struct ProcessMemory {
  int64_t anonymous = 0;  // its own: what a plan of memory counts
  int64_t files = 0;      // mapped from files, which the kernel may drop
};

ProcessMemory process_memory();

}  // namespace strata
