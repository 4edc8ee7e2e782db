#include "base/process_memory.h"

#include <cstdio>
#include <memory>

namespace strata {

ProcessMemory process_memory() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen("/proc/self/status", "r"), [](std::FILE* f) { return std::fclose(f); });
  ProcessMemory memory;
  if (!file) return memory;
  char line[128];
  while (std::fgets(line, sizeof line, file.get()) != nullptr) {
    long long kib = 0;
    if (std::sscanf(line, "RssAnon: %lld", &kib) == 1) memory.anonymous = kib * 1024;
    if (std::sscanf(line, "RssFile: %lld", &kib) == 1) memory.files = kib * 1024;
  }
  return memory;
}

}  // namespace strata
