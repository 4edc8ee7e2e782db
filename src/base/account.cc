// SPDX-License-Identifier: Apache-2.0
#include "base/account.h"

#include "base/check.h"

namespace strata {
namespace {

constexpr int64_t kGiB = 1 << 30;

}  // namespace

Accounts::Accounts()
    : limits_(std::make_shared<SharedLimits>(
          SharedLimits{SharedLimit(kGiB), SharedLimit(kGiB), SharedLimit(kGiB), SharedLimit(kGiB),
                       SharedLimit(kGiB), SharedLimit(kGiB), SharedLimit(kGiB), SharedLimit(kGiB),
                       SharedLimit(kGiB)})) {}

SharedLimit& Accounts::of(Use use) const { return (*limits_)[static_cast<size_t>(use)]; }

Charge Accounts::open(std::string tenant) const { return {limits_, std::move(tenant)}; }

void Accounts::set_num_tenants(int64_t count) const {
  for (SharedLimit& limit : *limits_) limit.set_num_tenants(count);
}

bool Charge::hold(Use use, int64_t amount, int64_t spare) {
  CHECK(limits_ != nullptr, "a charge that is nobody's");
  SharedLimit& limit = (*limits_)[static_cast<size_t>(use)];
  int64_t& held = held_[static_cast<size_t>(use)];
  if (amount < held) {
    limit.give_back(tenant_, held - amount);
  } else if (!limit.take_only(tenant_, amount - held, spare)) {
    return false;
  }
  held = amount;
  return true;
}

void Charge::hold_anyway(Use use, int64_t amount) {
  if (hold(use, amount)) return;
  int64_t& held = held_[static_cast<size_t>(use)];
  (*limits_)[static_cast<size_t>(use)].take_anyway(tenant_, amount - held);
  held = amount;
}

void Charge::release(Use use) {
  int64_t& held = held_[static_cast<size_t>(use)];
  if (held > 0) (*limits_)[static_cast<size_t>(use)].give_back(tenant_, std::exchange(held, 0));
}

void Charge::release_all() {
  for (size_t use = 0; use < kNumUses; ++use) release(static_cast<Use>(use));
}

void Charge::swap(Charge& other) noexcept {
  std::swap(limits_, other.limits_);
  std::swap(tenant_, other.tenant_);
  std::swap(held_, other.held_);
}

}  // namespace strata
