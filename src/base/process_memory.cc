// SPDX-License-Identifier: Apache-2.0
#include "base/process_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>

namespace strata {
namespace {

// The least of the limits from the group up to the root; "max" is none, and no number.
int64_t read_least_limit(const std::string& tree, std::string group, const char* name,
                         int64_t limit) {
  while (true) {
    int64_t bytes = 0;
    if (std::ifstream(tree + group + "/" + name) >> bytes) limit = std::min(limit, bytes);
    if (group.empty()) return limit;
    group.resize(group.rfind('/'));
  }
}

struct CgroupLine {
  std::string_view controllers;
  std::string group;  // empty: the root
};

// None of a line that has no group: "hierarchy:controllers:group".
std::optional<CgroupLine> parse_cgroup_line(std::string_view line) {
  const size_t first = line.find(':'), second = line.find(':', first + 1);
  if (second == std::string_view::npos || line.substr(second + 1, 1) != "/") return std::nullopt;
  const std::string_view group = line.substr(second + 1);
  return CgroupLine{.controllers = line.substr(first + 1, second - first - 1),
                    .group = std::string(group == "/" ? "" : group)};
}

}  // namespace

ProcessMemory read_process_memory() {
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

int64_t read_resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  long long total = 0, resident = 0;
  const int read = std::fscanf(file, "%lld %lld", &total, &resident);
  std::fclose(file);
  return read == 2 ? static_cast<int64_t>(resident) * sysconf(_SC_PAGESIZE) : 0;
}

// https://docs.kernel.org/admin-guide/cgroup-v2.html and -v1/memory.html.
int64_t read_usable_memory(const std::string& root) {
  int64_t limit = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::optional<CgroupLine> found = parse_cgroup_line(line);
    if (!found) continue;
    if (found->controllers.empty()) {
      limit = read_least_limit(root + "/sys/fs/cgroup", found->group, "memory.max", limit);
    } else if (found->controllers == "memory") {
      limit = read_least_limit(root + "/sys/fs/cgroup/memory", found->group,
                               "memory.limit_in_bytes", limit);
    }
  }
  return limit;
}

}  // namespace strata
