// SPDX-License-Identifier: Apache-2.0
#include "base/cores.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <string_view>

namespace strata {
namespace {

std::atomic<int> cores_before = 0;  // 0: never bound

// Calls body with each number of a list as the kernel writes it: "0-3,8".
template <typename Body>
void for_each_in(std::string_view list, Body body) {
  while (!list.empty()) {
    const std::string_view range = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), range.size() + 1));
    int first = 0, last = 0;
    const char* end = range.data() + range.size();
    const auto [rest, fault] = std::from_chars(range.data(), end, first);
    if (fault != std::errc()) return;
    last = first;
    if (rest != end && *rest == '-') std::from_chars(rest + 1, end, last);
    for (int core = first; core <= last; ++core) body(core);
  }
}

// Calls body(node, core) with each core of the machine's nodes.
template <typename Body>
void for_each_core_of_nodes(Body body) {
  constexpr const char* kNodes = "/sys/devices/system/node/";
  const auto line_of = [](const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
  };
  for_each_in(line_of(fmt::format("{}online", kNodes)), [&](int node) {
    for_each_in(line_of(fmt::format("{}node{}/cpulist", kNodes, node)),
                [&](int core) { body(node, core); });
  });
}

}  // namespace

int shared_cores() {
  const int before = cores_before.load(std::memory_order_relaxed);
  return before > 0 ? before : usable_cores();
}

std::vector<int> cores_by_node() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  const auto take = [&](int core) {
    if (core < 0 || core >= CPU_SETSIZE || !CPU_ISSET(core, &set)) return;
    cores.push_back(core);
    CPU_CLR(core, &set);
  };
  for_each_core_of_nodes([&](int, int core) { take(core); });
  for (int core = 0; core < CPU_SETSIZE; ++core) take(core);  // where the kernel says nothing
  return cores;
}

bool bind_to_cores(std::span<const int> cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  const int before = shared_cores();
  if (sched_setaffinity(0, sizeof(set), &set) != 0) return false;
  cores_before.store(before, std::memory_order_relaxed);
  return true;
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

std::string usable_node_list() {
  cpu_set_t set;
  std::string list;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return list;
  int last = -1;
  for_each_core_of_nodes([&](int node, int core) {
    if (node == last || core < 0 || core >= CPU_SETSIZE || !CPU_ISSET(core, &set)) return;
    list += (list.empty() ? "" : ",") + std::to_string(node);
    last = node;
  });
  return list;
}

std::string usable_core_list() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {};
  std::string list;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) list += (list.empty() ? "" : ",") + std::to_string(core);
  }
  return list;
}

}  // namespace strata
