// SPDX-License-Identifier: Apache-2.0
#include "base/shared_limit.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutex.h"

namespace strata {

namespace {

// Up to so many tenants each have a part of their own: one half is divided evenly, and from the
// other half anybody takes who has used up its own part. Of more, nobody knows which will come.
constexpr int64_t kFew = 16;
// Where there are many, a tenant may hold this many times what it leaves free.
constexpr int64_t kTimesFree = 2;
constexpr int64_t kFloors = 1024;      // a floor is limit / kFloors at least
constexpr int64_t kKeptForFloors = 8;  // limit / 8: nobody takes it but to its floor

}  // namespace

struct SharedLimitState {
  SharedLimitState(int64_t limit_of_all, int64_t useful)
      : limit(limit_of_all),
        floor(std::max({int64_t{1}, limit / kFloors, std::min(useful, limit / kKeptForFloors)})) {}

  [[nodiscard]] bool is_divided() const REQUIRES(mutex) { return num_tenants <= kFew; }
  [[nodiscard]] int64_t own_part() const REQUIRES(mutex) {
    return is_divided() ? limit / 2 / num_tenants : floor;
  }
  [[nodiscard]] int64_t beyond_own(int64_t amount) const REQUIRES(mutex) {
    return std::max<int64_t>(0, amount - own_part());
  }
  [[nodiscard]] int64_t common_taken() const REQUIRES(mutex) {
    int64_t all = 0;
    for (const auto& [tenant, amount] : used) all += beyond_own(amount);
    return all;
  }
  // Whether who holds `before` may take so much more, and `spare` afterwards.
  [[nodiscard]] bool has_budget(int64_t before, int64_t more, int64_t spare) const REQUIRES(mutex) {
    return is_divided() ? has_budget_among_few(before, more, spare)
                        : has_budget_among_many(before, more, spare);
  }
  // It leaves half of its own part at most: what others hold takes none of it.
  [[nodiscard]] bool has_budget_among_few(int64_t before, int64_t more, int64_t spare) const
      REQUIRES(mutex) {
    if (before + more + std::min(spare, own_part() / 2) <= own_part()) return true;
    const int64_t wanted = beyond_own(before + more + spare) - beyond_own(before);
    // What the division by tenants leaves over is anybody's.
    return wanted <= 0 || common_taken() + wanted <= limit - own_part() * num_tenants;
  }
  [[nodiscard]] bool has_budget_among_many(int64_t before, int64_t more, int64_t spare) const
      REQUIRES(mutex) {
    if (limit - all < more) return false;
    if (before + more <= own_part()) return true;
    const int64_t amount = more + spare;
    const int64_t free = limit - all - amount;
    return before + amount <= kTimesFree * (free - limit / kKeptForFloors);
  }
  bool try_take(const std::string& tenant, int64_t amount, int64_t spare) {
    if (amount == 0) return true;
    const MutexLock lock(mutex);
    const auto found = used.find(tenant);
    const int64_t before = found == used.end() ? 0 : found->second;
    if (!has_budget(before, amount, spare)) return false;
    all += amount;
    used[tenant] = before + amount;
    return true;
  }
  void take_anyway(const std::string& tenant, int64_t amount) {
    if (amount == 0) return;
    const MutexLock lock(mutex);
    all += amount;
    used[tenant] += amount;
  }
  void give_back(const std::string& tenant, int64_t amount) {
    if (amount == 0) return;
    const MutexLock lock(mutex);
    const auto found = used.find(tenant);
    CHECK(found != used.end() && found->second >= amount, tenant, amount);
    all -= amount;
    found->second -= amount;
    if (found->second == 0) used.erase(found);
  }
  void set_num_tenants(int64_t count) {
    const MutexLock lock(mutex);
    num_tenants = std::max<int64_t>(1, count);
  }

  int64_t most_of_one_tenant() const {
    const MutexLock lock(mutex);
    if (is_divided()) return limit - own_part() * (num_tenants - 1);
    const int64_t shared = limit - limit / kKeptForFloors;
    return std::max(own_part(), shared * kTimesFree / (kTimesFree + 1));
  }

  const int64_t limit, floor;
  mutable Mutex mutex;
  int64_t num_tenants GUARDED_BY(mutex) = 1;
  int64_t all GUARDED_BY(mutex) = 0;  // the sum of `used`
  std::map<std::string, int64_t> used GUARDED_BY(mutex);
};

SharedLimit::SharedLimit(int64_t limit, int64_t useful)
    : state_(std::make_shared<SharedLimitState>(limit, useful)) {}

void SharedLimit::set_num_tenants(int64_t count) { state_->set_num_tenants(count); }

SharedLimit::Share SharedLimit::take(const std::string& tenant, int64_t amount, int64_t spare) {
  return Share::take(state_, tenant, amount, spare);
}

bool SharedLimit::take_only(const std::string& tenant, int64_t amount, int64_t spare) {
  return state_->try_take(tenant, amount, spare);
}

void SharedLimit::take_anyway(const std::string& tenant, int64_t amount) {
  state_->take_anyway(tenant, amount);
}

void SharedLimit::give_back(const std::string& tenant, int64_t amount) {
  state_->give_back(tenant, amount);
}

int64_t SharedLimit::limit() const { return state_->limit; }

int64_t SharedLimit::own_part() const {
  const MutexLock lock(state_->mutex);
  return state_->own_part();
}

int64_t SharedLimit::most() const { return state_->most_of_one_tenant(); }

int64_t SharedLimit::used() const {
  const MutexLock lock(state_->mutex);
  return state_->all;
}

int64_t SharedLimit::used(const std::string& tenant) const {
  const MutexLock lock(state_->mutex);
  const auto found = state_->used.find(tenant);
  return found == state_->used.end() ? 0 : found->second;
}

SharedLimit::Share SharedLimit::Share::take(const std::shared_ptr<SharedLimitState>& state,
                                            const std::string& tenant, int64_t amount,
                                            int64_t spare) {
  Share share;
  share.tenant_ = tenant;
  if (!state->try_take(tenant, amount, spare)) return share;
  share.state_ = state;
  share.amount_ = amount;
  return share;
}

SharedLimit::Share::~Share() {
  if (state_ != nullptr) state_->give_back(tenant_, amount_);
}

bool SharedLimit::Share::resize(int64_t amount) {
  if (state_ == nullptr) return false;
  if (amount < amount_) {
    state_->give_back(tenant_, amount_ - amount);
  } else if (!state_->try_take(tenant_, amount - amount_, 0)) {
    return false;
  }
  amount_ = amount;
  return true;
}

SharedLimit::Share SharedLimit::Share::another(int64_t amount) const {
  return state_ == nullptr ? Share() : take(state_, tenant_, amount, 0);
}

int64_t SharedLimit::Share::most() const { return state_->most_of_one_tenant(); }

}  // namespace strata
