// SPDX-License-Identifier: Apache-2.0
// TenantSums: what rows of the state store add up to, by tenant and in all: read once, then kept
// along with them, so that no request adds them up. Not known when a commit failed, of which nobody
// can say whether it was done. Any thread.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "server/store/state/sql.h"

namespace strata::server {

class TenantSums {
 public:
  using Sums = std::map<std::string, int64_t>;  // by tenant

  // The sum over all tenants, or that of one; nothing where they are not known.
  [[nodiscard]] std::optional<int64_t> all() const {
    const MutexLock lock(mutex_);
    return known_ ? std::optional(all_) : std::nullopt;
  }
  [[nodiscard]] std::optional<int64_t> sum_of(const std::string& tenant) const {
    const MutexLock lock(mutex_);
    if (!known_) return std::nullopt;
    const auto found = sums_.find(tenant);
    return found == sums_.end() ? 0 : found->second;
  }

  // Tenants that have more; none where it is not known.
  [[nodiscard]] std::vector<std::string> tenants_above(int64_t amount) const {
    const MutexLock lock(mutex_);
    std::vector<std::string> tenants;
    for (const auto& [tenant, sum] : sums_) {
      if (known_ && sum > amount) tenants.push_back(tenant);
    }
    return tenants;
  }

  void set(Sums sums) {
    const MutexLock lock(mutex_);
    sums_ = std::move(sums);
    all_ = 0;
    for (const auto& [tenant, amount] : sums_) all_ += amount;
    known_ = true;
  }
  // Commits what adds so much.
  void commit_growth(Transaction& transaction, const Sums& more) {
    Unsure unsure{*this};
    transaction.commit();
    unsure.is_over = true;
    const MutexLock lock(mutex_);
    for (const auto& [tenant, amount] : more) {
      sums_[tenant] += amount;
      all_ += amount;
    }
  }

 private:
  struct Unsure {  // what an Error ends, nobody knows
    TenantSums& sums;
    bool is_over = false;
    ~Unsure() {
      const MutexLock lock(sums.mutex_);
      if (!is_over) sums.known_ = false;
    }
  };

  mutable Mutex mutex_;
  bool known_ GUARDED_BY(mutex_) = false;
  int64_t all_ GUARDED_BY(mutex_) = 0;
  Sums sums_ GUARDED_BY(mutex_);
};

}  // namespace strata::server
