// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace strata {
namespace {

// A hierarchy of control groups that may hold quotas, as it is mounted.
struct Hierarchy {
  bool is_v2 = false;
  std::string top;    // the group that the mount point shows
  std::string point;  // where
};

bool lists(std::string_view names, std::string_view wanted) {
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    if (name == wanted) return true;
    names.remove_prefix(std::min(names.size(), name.size() + 1));
  }
  return false;
}

// A line of /proc/self/mountinfo (proc(5)): ID PARENT DEVICE TOP POINT OPTIONS [FIELDS] - TYPE
// SOURCE OPTIONS.
std::optional<Hierarchy> parse_mount(const std::string& line) {
  std::istringstream words(line);
  std::string id, parent, device, word, type, source, options;
  Hierarchy found;
  words >> id >> parent >> device >> found.top >> found.point;
  while (words >> word && word != "-") {
  }
  words >> type >> source >> options;
  found.is_v2 = type == "cgroup2";
  if (!found.is_v2 && (type != "cgroup" || !lists(options, "cpu"))) return std::nullopt;
  return found;
}

// The group that a line of /proc/self/cgroup, NUMBER:CONTROLLERS:GROUP, names in the hierarchy;
// nothing for a line of another one. Version 2 has the number 0 and no controllers.
std::optional<std::string> parse_group(const std::string& line, const Hierarchy& hierarchy) {
  const size_t first = line.find(':');
  const size_t second = line.find(':', std::min(first, line.size() - 1) + 1);
  if (line.empty() || second == std::string::npos) return std::nullopt;
  const std::string controllers = line.substr(first + 1, second - first - 1);
  const bool is_its = hierarchy.is_v2 ? controllers.empty() : lists(controllers, "cpu");
  if (!is_its) return std::nullopt;
  return line.substr(second + 1);
}

// The first two words of a file; empty ones where it has none.
std::pair<std::string, std::string> read_two_words(const std::string& path) {
  std::pair<std::string, std::string> words;
  std::ifstream file(path);
  file >> words.first >> words.second;
  return words;
}

std::optional<double> quotient(const std::string& quota, const std::string& period) {
  double time = 0, of = 0;
  if (!(std::istringstream(quota) >> time) || !(std::istringstream(period) >> of)) return {};
  if (time <= 0 || of <= 0) return {};  // -1: there is none
  return time / of;
}

// The quota in cores of one group, whatever those above it have.
std::optional<double> read_quota_of_group(const std::string& folder, bool is_v2) {
  if (is_v2) {
    const auto [quota, period] = read_two_words(folder + "/cpu.max");  // or "max 100000"
    return quotient(quota, period);
  }
  return quotient(read_two_words(folder + "/cpu.cfs_quota_us").first,
                  read_two_words(folder + "/cpu.cfs_period_us").first);
}

void keep_least(std::optional<double>& least, const std::optional<double>& quota) {
  if (quota) least = std::min(least.value_or(*quota), *quota);
}

// A container may see its own group as the top of what is mounted, and in /proc by a name that it
// has outside.
std::string path_below_top(const std::string& group, const std::string& top) {
  if (top == "/") return group == "/" ? "" : group;
  return group.starts_with(top + "/") ? group.substr(top.size()) : "";
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  return lines;
}

}  // namespace

std::optional<double> read_cpu_quota(const std::string& root) {
  std::optional<double> least;
  const std::vector<std::string> groups = lines_of(root + "/proc/self/cgroup");
  for (const std::string& mount : lines_of(root + "/proc/self/mountinfo")) {
    const std::optional<Hierarchy> hierarchy = parse_mount(mount);
    if (!hierarchy) continue;
    for (const std::string& line : groups) {
      const std::optional<std::string> group = parse_group(line, *hierarchy);
      if (!group) continue;
      std::string below = path_below_top(*group, hierarchy->top);
      const std::string point = root + hierarchy->point;
      keep_least(least, read_quota_of_group(point + below, hierarchy->is_v2));
      while (!below.empty()) {
        below.resize(std::min(below.rfind('/'), below.size()));
        keep_least(least, read_quota_of_group(point + below, hierarchy->is_v2));
      }
    }
  }
  return least;
}

}  // namespace strata
