// SPDX-License-Identifier: Apache-2.0
// Accounts: what requests make a server hold, by tenant and by what it is held for. Each use has a
// limit that tenants share (base/shared_limit.h). A copy is the same accounts. Any thread.
// Charge: what one request holds of its tenant's account; it moves to whoever holds that next, and
// its end, on any thread, gives everything back. One thread at a time.
//   Charge charge = accounts.open("alice");
//   if (!charge.hold(Use::kBody, 4096)) return busy();
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/shared_limit.h"

namespace strata {

enum class Use : uint8_t {
  kRequest,   // bytes of connections whose requests are being answered
  kSign,      // likewise, of signs of life
  kBody,      // bytes of bodies that are being read, with what reading them takes
  kQueue,     // bytes of commands, from their acceptance to their end
  kSample,    // samples that have not begun
  kResult,    // bytes of results until they are gone; of samples from their acceptance on
  kPoll,      // polls that wait
  kResponse,  // bytes of responses that are being made or sent and are no results
  kDownload,  // bytes of pieces of files that are being sent
};
inline constexpr size_t kNumUses = 9;

using SharedLimits = std::array<SharedLimit, kNumUses>;

class Charge;

class Accounts {
 public:
  // Each use has a limit of 1 << 30, until another is assigned to it.
  Accounts();
  // Assign before anything is held.
  [[nodiscard]] SharedLimit& of(Use use) const;
  // Who holds nothing yet.
  [[nodiscard]] Charge open(std::string tenant) const;
  // How many tenants may come.
  void set_num_tenants(int64_t count) const;

 private:
  std::shared_ptr<SharedLimits> limits_;
};

class Charge {
 public:
  Charge() = default;  // nobody's: it holds nothing, and never may
  Charge(Charge&& other) noexcept { swap(other); }
  Charge& operator=(Charge&& other) noexcept {
    Charge(std::move(other)).swap(*this);
    return *this;
  }
  ~Charge() { release_all(); }

  // From now on it holds `amount` for this use. False, and no change, where that is too much: where
  // the tenant could not take `spare` more afterwards (SharedLimit::take()). Less never is.
  [[nodiscard]] bool hold(Use use, int64_t amount, int64_t spare = 0);
  // Holds what is there already, even where that is too much.
  void hold_anyway(Use use, int64_t amount);
  void release(Use use);
  void release_all();

  [[nodiscard]] int64_t held(Use use) const { return held_[static_cast<size_t>(use)]; }
  [[nodiscard]] const std::string& tenant() const { return tenant_; }
  [[nodiscard]] const SharedLimit& limit(Use use) const {
    return (*limits_)[static_cast<size_t>(use)];
  }
  // What the tenant holds for this use, with what this does.
  [[nodiscard]] int64_t held_by_tenant(Use use) const { return limit(use).used(tenant_); }
  // One more of the same tenant, which holds nothing yet.
  [[nodiscard]] Charge another() const { return {limits_, tenant_}; }

 private:
  friend class Accounts;
  Charge(std::shared_ptr<SharedLimits> limits, std::string tenant)
      : limits_(std::move(limits)), tenant_(std::move(tenant)) {}
  void swap(Charge& other) noexcept;

  std::shared_ptr<SharedLimits> limits_;
  std::string tenant_;
  std::array<int64_t, kNumUses> held_ = {};
};

}  // namespace strata
