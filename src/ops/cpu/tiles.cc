// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#endif

namespace strata::ops::cpu {

constinit thread_local bool thread_has_tiles = false;

namespace {

#if defined(__x86_64__) && defined(__linux__)
// CPUID leaf 7: EDX bit 22 is AMX-BF16, bit 24 AMX-TILE.
bool processor_has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kBits = 1u << 22 | 1u << 24;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kBits) == kBits;
}

// arch_prctl(2): the state of tiles is large, so that a process has to ask for it (Linux 5.16).
std::string ask_for_tiles() {
  if (!processor_has_tiles()) return "the processor has no AMX-BF16";
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return "";
  return std::string("the kernel or a sandbox refuses them (arch_prctl: ") + std::strerror(errno) +
         ")";
}
#else
std::string ask_for_tiles() { return "they are of Linux on x86-64"; }
#endif

}  // namespace

const std::string& why_no_tiles() {
  static const std::string reason = ask_for_tiles();
  return reason;
}

bool tiles_granted() { return why_no_tiles().empty(); }

}  // namespace strata::ops::cpu
