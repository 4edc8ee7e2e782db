// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

namespace strata::apps {
namespace {

// When this process started, in seconds since the machine did.
std::optional<double> process_start_since_boot() {
  std::ifstream in("/proc/self/stat");
  const std::string stat{std::istreambuf_iterator<char>(in), {}};
  size_t at = stat.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return std::nullopt;
  return std::strtod(stat.c_str() + at, nullptr) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

double process_age() {
  const std::optional<double> started = process_start_since_boot();
  if (!started) return 0.0;
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);  // what the start counts from, in every container
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - *started;
}

double peak_rss_gib() {
  struct rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1024.0 * 1024.0);
}

}  // namespace strata::apps
