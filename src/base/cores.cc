// SPDX-License-Identifier: Apache-2.0
#include "base/cores.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/cpu_quota.h"

namespace strata {
namespace {

std::atomic<int> cores_before = 0;  // 0: never bound

struct NumberRange {
  int first, last;
};

// "3" or "0-3".
std::optional<NumberRange> parse_range(std::string_view text) {
  NumberRange range = {0, 0};
  const char* end = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), end, range.first);
  if (fault != std::errc()) return std::nullopt;
  range.last = range.first;
  if (rest != end && *rest == '-') std::from_chars(rest + 1, end, range.last);
  return range;
}

// Calls body with each number of a list as the kernel writes it, "0-3,8", up to what is none.
template <typename Body>
void for_each_listed_number(std::string_view list, Body body) {
  while (!list.empty()) {
    const std::string_view part = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), part.size() + 1));
    const std::optional<NumberRange> range = parse_range(part);
    if (!range) return;
    for (int number = range->first; number <= range->last; ++number) body(number);
  }
}

// Empty where there is no such file.
std::string read_first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Calls body(node, core) with each core of the machine's nodes.
template <typename Body>
void for_each_core_of_nodes(Body body) {
  constexpr const char* kNodes = "/sys/devices/system/node/";
  for_each_listed_number(read_first_line(fmt::format("{}online", kNodes)), [&](int node) {
    for_each_listed_number(read_first_line(fmt::format("{}node{}/cpulist", kNodes, node)),
                           [&](int core) { body(node, core); });
  });
}

// Sets of CPU_SETSIZE cores each, for more cores than a kernel is built for: it refuses a set that
// is smaller than its own.
using CoreSet = std::array<cpu_set_t, 64>;

CoreSet core_set_of(std::span<const int> cores) {
  CoreSet set = {};
  for (const int core : cores) {
    const auto bit = static_cast<size_t>(core);
    CPU_SET(bit % CPU_SETSIZE, &set.at(bit / CPU_SETSIZE));
  }
  return set;
}

// Those that this thread may use, in order; none where the system does not say.
std::vector<int> usable_core_numbers() {
  CoreSet set = {};
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), set.data()) != 0) return cores;
  for (size_t core = 0; core < set.size() * CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core % CPU_SETSIZE, &set[core / CPU_SETSIZE]))
      cores.push_back(static_cast<int>(core));
  }
  return cores;
}

int within_quota(int cores) {
  const std::optional<double> quota = read_cpu_quota();
  return quota ? std::clamp(static_cast<int>(std::min(*quota, 1e6)), 1, cores) : cores;
}

}  // namespace

int usable_threads() { return within_quota(usable_cores()); }

int shared_threads() { return within_quota(shared_cores()); }

int shared_cores() {
  const int before = cores_before.load(std::memory_order_relaxed);
  return before > 0 ? before : usable_cores();
}

std::vector<int> usable_cores_by_node() {
  std::vector<int> left = usable_core_numbers(), cores;
  for_each_core_of_nodes([&](int, int core) {
    const auto found = std::find(left.begin(), left.end(), core);
    if (found == left.end()) return;
    left.erase(found);
    cores.push_back(core);
  });
  cores.insert(cores.end(), left.begin(), left.end());  // where the kernel says nothing
  return cores;
}

bool bind_to_cores(std::span<const int> cores) {
  const CoreSet set = core_set_of(cores);
  const int before = shared_cores();
  if (sched_setaffinity(0, sizeof(set), set.data()) != 0) return false;
  cores_before.store(before, std::memory_order_relaxed);
  return true;
}

int usable_cores() { return std::max(1, static_cast<int>(usable_core_numbers().size())); }

std::string usable_node_list() {
  const std::vector<int> cores = usable_core_numbers();
  std::string list;
  int last = -1;
  for_each_core_of_nodes([&](int node, int core) {
    if (node == last || !std::binary_search(cores.begin(), cores.end(), core)) return;
    list += (list.empty() ? "" : ",") + std::to_string(node);
    last = node;
  });
  return list;
}

std::string usable_core_list() { return fmt::format("{}", fmt::join(usable_core_numbers(), ",")); }

}  // namespace strata
