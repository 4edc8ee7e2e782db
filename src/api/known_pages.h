// SPDX-License-Identifier: Apache-2.0
// KnownPages: the pages of prompts that an engine would not read again, as hashes of whose they are
// (tenant, sampler weights) and of all tokens up to the page's end. Two that collide are counted
// wrongly, and nothing else comes of it: the engine itself compares tokens. Plain values.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>

#include "api/page_need.h"

namespace strata::api {

class KnownPages {
 public:
  [[nodiscard]] static uint64_t hash_of(const TenantId& tenant, const SnapshotId& snapshot) {
    const std::hash<std::string> hash;
    return mix(mix(0, hash(tenant.text)), hash(snapshot.text));
  }
  // The hash of what `before` is of, and a page behind it.
  [[nodiscard]] static uint64_t hash_of(uint64_t before, std::span<const int32_t> page) {
    for (const int32_t token : page) before = mix(before, static_cast<uint32_t>(token));
    return before;
  }

  void add(uint64_t hash) { ++counts_[hash]; }
  void remove(uint64_t hash) {
    const auto found = counts_.find(hash);
    if (found != counts_.end() && --found->second == 0) counts_.erase(found);
  }

  // How many pages of the command's prompt would not be read, as far as it may begin behind them.
  [[nodiscard]] int64_t count_reusable_pages(const TenantId& tenant, const Sample& sample,
                                             const CachePages& cache) const {
    if (counts_.empty()) return 0;
    const std::span<const int32_t> prompt(sample.prompt);
    const auto size = static_cast<size_t>(cache.page_size);
    const auto most = static_cast<size_t>(CachePages::max_reusable_positions(sample)) / size;
    uint64_t hash = hash_of(tenant, sample.snapshot);
    int64_t pages = 0;
    for (size_t i = 0; i < most; ++i) {
      hash = hash_of(hash, prompt.subspan(i * size, size));
      if (counts_.contains(hash)) pages = static_cast<int64_t>(i) + 1;
    }
    return pages;
  }

 private:
  [[nodiscard]] static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
  }

  std::unordered_map<uint64_t, int32_t> counts_;
};

}  // namespace strata::api
