// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "server/tinker/refusals.h"

namespace strata::server {
namespace {

constexpr double kBurstSeconds = 10;
constexpr double kLongestSaid = 30 * 86400;

size_t index(UsageKind kind) { return static_cast<size_t>(kind); }

// What has reached the end of its type stays there: a quota is never gained by wrapping.
void add_up(int64_t& sum, int64_t amount) {
  if (__builtin_add_overflow(sum, amount, &sum)) sum = std::numeric_limits<int64_t>::max();
}

double full(const UsageLimit& rate) { return std::max(1.0, kBurstSeconds * rate.amount); }

const char* kind_in_words(UsageKind kind) {
  switch (kind) {
    case UsageKind::kRequests:
      return "requests";
    case UsageKind::kTrainedTokens:
      return "trained tokens";
    case UsageKind::kSampledTokens:
      return "sampled tokens";
    case UsageKind::kPromptTokens:
      return "tokens of prompts";
    case UsageKind::kDiskBytes:
      return "bytes of checkpoints";
  }
  return "";
}

// Where `lacking` is not in the tenant's bucket now, and `held` is reserved for what is under way.
Response over_rate_response(const std::string& name, const UsageLimit& rate, double lacking,
                            double held) {
  // By then there is enough, also where what is under way takes all of it: unless a full bucket
  // holds less than both, when that has to end first.
  const double seconds = std::max(1.0, std::ceil(lacking / rate.amount));
  const std::string under_way =
      held > 0 ? fmt::format(", or when what is under way has ended, which may yield {:.0f}", held)
               : "";
  Refusal row = kOverRate;
  row.retry_seconds = static_cast<int>(std::min(seconds, kLongestSaid));
  return refuse(row, {name, rate.amount, kind_in_words(rate.kind), rate.text, seconds, under_way});
}

const char* over_quota_advice(UsageKind kind) {
  switch (kind) {
    case UsageKind::kDiskBytes:
      return "delete checkpoints, or let them expire (ttl_seconds)";
    case UsageKind::kSampledTokens:
      return "ask for fewer max_tokens or num_samples, or ask the operator for more";
    case UsageKind::kRequests:
    case UsageKind::kTrainedTokens:
    case UsageKind::kPromptTokens:
      break;
  }
  return "ask the operator for more";
}

// Where `used` bytes or tokens are, `held` are reserved for what is under way, and `more` are too
// many then.
Response over_quota_response(const std::string& name, const UsageLimit& quota, int64_t used,
                             int64_t held, int64_t more) {
  return refuse(kOverQuota, {name, quota.amount, kind_in_words(quota.kind), quota.text, used, held,
                             more, over_quota_advice(quota.kind)});
}

}  // namespace

TokenUse tokens_of(const api::Command& command) {
  TokenUse use;
  if (const auto* work = std::get_if<api::ForwardBackward>(&command.op)) {
    for (const api::Datum& datum : work->data) use.trained += std::ssize(datum.tokens);
  } else if (const auto* sample = std::get_if<api::Sample>(&command.op)) {
    use.prompt = std::ssize(sample->prompt);
    use.most_sampled = sample->num_samples * sample->max_tokens;
  }
  return use;
}

Usage::Usage(std::span<const UsageLimit> rates, std::span<const UsageLimit> quotas,
             const std::vector<UsageRow>& known) {
  for (const UsageLimit& rate : rates) rates_[{rate.tenant, rate.kind}] = rate;
  for (const UsageLimit& quota : quotas) quotas_[{quota.tenant, quota.kind}] = quota;
  for (const UsageRow& row : known) {
    Tenant& tenant = tenants_[row.tenant];
    tenant.keys[row.key_id] = {row.counts, row.counts};
    for (size_t i = 0; i < row.counts.size(); ++i) add_up(tenant.counts[i], row.counts[i]);
  }
}

const UsageLimit* Usage::find(const Limits& limits, const std::string& tenant, UsageKind kind) {
  auto found = limits.find({tenant, kind});
  if (found == limits.end()) found = limits.find({"*", kind});
  return found == limits.end() ? nullptr : &found->second;
}

// Filled up to now.
Usage::Bucket& Usage::refill_bucket(Tenant& tenant, const UsageLimit& rate, double now) {
  std::optional<Bucket>& found = tenant.buckets[index(rate.kind)];
  if (!found) found = Bucket{full(rate), now};
  found->level =
      std::min(full(rate), found->level + rate.amount * std::max(0.0, now - found->filled));
  found->filled = now;
  return *found;
}

std::optional<Response> Usage::refuse_over_limit(const std::string& name, UsageKind kind,
                                                 int64_t amount, double now) {
  CHECK(kind != UsageKind::kDiskBytes);
  if (auto refused = refuse_over_rate(name, kind, amount, now)) return refused;
  return refuse_over_quota(name, kind, tenants_[name].counts[index(kind)], amount);
}

int64_t Usage::reserved_amount(const Tenant& tenant, UsageKind kind) {
  const auto& reserved = tenant.reserved[index(kind)];
  return reserved ? reserved->load() : 0;
}

std::optional<Response> Usage::refuse_over_rate(const std::string& name, UsageKind kind,
                                                int64_t amount, double now) {
  const UsageLimit* rate = find(rates_, name, kind);
  if (rate == nullptr) return std::nullopt;
  Tenant& tenant = tenants_[name];
  const double level = refill_bucket(tenant, *rate, now).level;
  // What is under way may yield all that it asked for, and gives back the rest at its end.
  const auto held = static_cast<double>(reserved_amount(tenant, kind));
  const double wanted = std::min(static_cast<double>(amount), full(*rate));
  if (level - held >= wanted) return std::nullopt;
  ++refused_[index(kind)].by_rate;
  return over_rate_response(name, *rate, wanted + held - level, held);
}

std::optional<Response> Usage::refuse_over_limit(const std::string& tenant, const TokenUse& use,
                                                 double now) {
  std::optional<Response> refused;
  for (const auto& [kind, amount] : {std::pair(UsageKind::kTrainedTokens, use.trained),
                                     std::pair(UsageKind::kPromptTokens, use.prompt),
                                     std::pair(UsageKind::kSampledTokens, use.most_sampled)}) {
    if (amount == 0 || refused) continue;
    refused = refuse_over_limit(tenant, kind, amount, now);
  }
  return refused;
}

std::optional<Response> Usage::refuse_over_disk_quota(const std::string& tenant, int64_t used,
                                                      int64_t more) {
  return refuse_over_quota(tenant, UsageKind::kDiskBytes, used, more);
}

std::optional<Response> Usage::refuse_over_quota(const std::string& name, UsageKind kind,
                                                 int64_t used, int64_t more) {
  const UsageLimit* quota = find(quotas_, name, kind);
  if (quota == nullptr) return std::nullopt;
  const int64_t held = reserved_amount(tenants_[name], kind);
  if (static_cast<double>(used) + static_cast<double>(held) + static_cast<double>(more) <=
      quota->amount)
    return std::nullopt;
  ++refused_[index(kind)].by_quota;
  return over_quota_response(name, *quota, used, held, more);
}

void Usage::charge(const std::string& name, const std::string& key_id, UsageKind kind,
                   int64_t amount, double now) {
  CHECK(kind != UsageKind::kDiskBytes);
  Tenant& tenant = tenants_[name];
  add_up(tenant.keys[key_id].counts[index(kind)], amount);
  add_up(tenant.counts[index(kind)], amount);
  if (const UsageLimit* rate = find(rates_, name, kind))
    refill_bucket(tenant, *rate, now).level -= static_cast<double>(amount);
}

std::shared_ptr<void> Usage::charge_command(const std::string& tenant, const std::string& key_id,
                                            const TokenUse& use, double now) {
  if (use.trained > 0) charge(tenant, key_id, UsageKind::kTrainedTokens, use.trained, now);
  if (use.prompt > 0) charge(tenant, key_id, UsageKind::kPromptTokens, use.prompt, now);
  if (use.most_sampled == 0) return nullptr;
  return reserve(tenant, UsageKind::kSampledTokens, use.most_sampled);
}

std::shared_ptr<void> Usage::reserve(const std::string& tenant, UsageKind kind, int64_t amount) {
  auto& reserved = tenants_[tenant].reserved[index(kind)];
  if (!reserved) reserved = std::make_shared<std::atomic<int64_t>>(0);
  *reserved += amount;
  return {nullptr, [reserved, amount](void*) { *reserved -= amount; }};
}

std::vector<UsageRow> Usage::changed_rows() const {
  std::vector<UsageRow> out;
  for (const auto& [name, tenant] : tenants_) {
    for (const auto& [id, key] : tenant.keys) {
      if (key.counts != key.written) out.push_back({name, id, key.counts});
    }
  }
  return out;
}

void Usage::note_written(const std::vector<UsageRow>& rows) {
  for (const UsageRow& row : rows) tenants_[row.tenant].keys[row.key_id].written = row.counts;
}

std::vector<UsageRow> Usage::rows(const std::optional<std::string>& wanted) const {
  std::vector<UsageRow> out;
  for (const auto& [name, tenant] : tenants_) {
    if (wanted && name != *wanted) continue;
    for (const auto& [id, key] : tenant.keys) out.push_back({name, id, key.counts});
  }
  return out;
}

int64_t Usage::total(UsageKind kind) const {
  CHECK(kind != UsageKind::kDiskBytes);
  int64_t sum = 0;
  for (const auto& [name, tenant] : tenants_) add_up(sum, tenant.counts[index(kind)]);
  return sum;
}

std::vector<std::string> Usage::limits(const std::string& tenant) const {
  std::vector<std::string> out;
  for (size_t i = 0; i < kNumUsageKinds; ++i) {
    const auto kind = static_cast<UsageKind>(i);
    if (const UsageLimit* rate = find(rates_, tenant, kind)) out.push_back("--rate " + rate->text);
    if (const UsageLimit* quota = find(quotas_, tenant, kind))
      out.push_back("--quota " + quota->text);
  }
  return out;
}

}  // namespace strata::server
