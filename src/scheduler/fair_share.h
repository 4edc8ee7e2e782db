// SPDX-License-Identifier: Apache-2.0
// FairShare: who comes next when several share one resource. Each has a meter of what it used; the
// lowest goes first, ties by name. One who returns after idling starts at the lowest meter of those
// who are active, so nobody saves up credit and nobody is charged for the past. While two are
// active all the time, what they got differs by at most one item. Plain data, no lock.
#pragma once
#include <algorithm>
#include <map>
#include <optional>

namespace strata::scheduler {

template <typename Key>
class FairShare {
 public:
  // Who has something to do now; the others leave.
  template <typename Keys>
  void set_active(const Keys& keys) {
    const auto is_same = [](const Key& key, const auto& entry) { return key == entry.first; };
    if (std::equal(keys.begin(), keys.end(), used_.begin(), used_.end(), is_same)) return;
    std::map<Key, double> next;
    std::optional<double> lowest;
    for (const Key& key : keys) {
      const auto found = used_.find(key);
      if (found == used_.end()) continue;
      next[key] = found->second;
      lowest = lowest ? std::min(*lowest, found->second) : found->second;
    }
    for (const Key& key : keys) next.emplace(key, lowest.value_or(0.0));
    used_ = std::move(next);
  }
  void charge(const Key& key, double cost) { used_[key] += cost; }
  // Active ones only.
  [[nodiscard]] double used(const Key& key) const { return used_.at(key); }

 private:
  std::map<Key, double> used_;
};

}  // namespace strata::scheduler
