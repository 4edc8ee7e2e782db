// SPDX-License-Identifier: Apache-2.0
// Usage: what each key of each tenant has used, and the operator's limits on what a tenant uses.
// Counts outlive the process: the service writes what changed every few seconds, so that a crash
// forgets at most those. A rate is a bucket that holds ten seconds' worth: what passes takes its
// amount out, and what is larger than the bucket passes when it is full and is paid for by a longer
// wait. What samples yield is known, and taken, when they are done. A quota is never exceeded: what
// a sample may yield at most is held back until then. I/O thread only, but for reservations' ends.
//   const TokenUse use = tokens_of(command);
//   if (const auto refused = usage.refuse_over_limit(tenant, use, now)) ...
//   const auto reserved = usage.charge_command(tenant, key_id, use, now);
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/command.h"
#include "server/http/message.h"
#include "server/store/state/store.h"
#include "server/tinker/usage_limit.h"

namespace strata::server {

// Tokens that a command uses, and those that it may yield at most.
struct TokenUse {
  int64_t trained = 0, prompt = 0;
  int64_t most_sampled = 0;
};
TokenUse tokens_of(const api::Command& command);

class Usage {
 public:
  Usage(std::span<const UsageLimit> rates, std::span<const UsageLimit> quotas,
        const std::vector<UsageRow>& known);

  // The 429 that says which limit has no space for `amount` more, what to do and when; nothing
  // where there is space. `now` is now_seconds().
  [[nodiscard]] std::optional<Response> refuse_over_limit(const std::string& tenant, UsageKind kind,
                                                          int64_t amount, double now);
  // The 429 of the first limit that has no space for what the command takes.
  [[nodiscard]] std::optional<Response> refuse_over_limit(const std::string& tenant,
                                                          const TokenUse& use, double now);
  // The 429 where a checkpoint of `more` bytes is over the quota; the tenant's take `used` now.
  [[nodiscard]] std::optional<Response> refuse_over_disk_quota(const std::string& tenant,
                                                               int64_t used, int64_t more);
  void charge(const std::string& tenant, const std::string& key_id, UsageKind kind, int64_t amount,
              double now);
  // Charges a command that was accepted, and reserves what it may yield; null: nothing is reserved.
  [[nodiscard]] std::shared_ptr<void> charge_command(const std::string& tenant,
                                                     const std::string& key_id, const TokenUse& use,
                                                     double now);
  // Held back from the tenant's quota while the answer lives, which may end on any thread.
  [[nodiscard]] std::shared_ptr<void> reserve(const std::string& tenant, UsageKind kind,
                                              int64_t amount);
  [[nodiscard]] bool has_quota(const std::string& tenant, UsageKind kind) const {
    return find(quotas_, tenant, kind) != nullptr;
  }

  // Rows that differ from what note_written() has seen.
  [[nodiscard]] std::vector<UsageRow> changed_rows() const;
  void note_written(const std::vector<UsageRow>& rows);
  // A tenant's, or all, in order.
  [[nodiscard]] std::vector<UsageRow> rows(const std::optional<std::string>& tenant) const;
  [[nodiscard]] int64_t total(UsageKind kind) const;  // of all tenants; not of disk bytes
  struct Refused {
    int64_t by_rate = 0, by_quota = 0;
  };
  [[nodiscard]] const std::array<Refused, kNumUsageKinds>& refused() const { return refused_; }
  // The limits of a tenant, as given.
  [[nodiscard]] std::vector<std::string> limits(const std::string& tenant) const;

 private:
  using Limits = std::map<std::pair<std::string, UsageKind>, UsageLimit>;
  struct Bucket {
    double level = 0;
    double filled = 0;  // now_seconds()
  };
  struct Key {
    std::array<int64_t, kNumCountedKinds> counts = {}, written = {};
  };
  struct Tenant {
    std::map<std::string, Key> keys;
    std::array<int64_t, kNumCountedKinds> counts = {};
    std::array<std::optional<Bucket>, kNumUsageKinds> buckets;
    std::array<std::shared_ptr<std::atomic<int64_t>>, kNumUsageKinds> reserved = {};
  };

  [[nodiscard]] static const UsageLimit* find(const Limits& limits, const std::string& tenant,
                                              UsageKind kind);
  [[nodiscard]] static int64_t reserved_amount(const Tenant& tenant, UsageKind kind);
  Bucket& refill_bucket(Tenant& tenant, const UsageLimit& rate, double now);
  std::optional<Response> refuse_over_rate(const std::string& tenant, UsageKind kind,
                                           int64_t amount, double now);
  std::optional<Response> refuse_over_quota(const std::string& tenant, UsageKind kind, int64_t used,
                                            int64_t more);

  Limits rates_, quotas_;
  std::map<std::string, Tenant> tenants_;
  std::array<Refused, kNumUsageKinds> refused_ = {};
};

}  // namespace strata::server
