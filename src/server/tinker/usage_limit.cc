// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/usage_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "base/ascii.h"
#include "base/option_values.h"
#include "server/store/checkpoints/tinker_path.h"

namespace strata::server {
namespace {

constexpr std::array<std::string_view, kNumUsageKinds> kNames = {
    "requests", "trained-tokens", "sampled-tokens", "prompt-tokens", "disk-bytes"};

struct Parts {
  UsageLimit limit;
  std::string amount;
};

std::optional<UsageKind> find_usage_kind(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<UsageKind>(found - kNames.begin());
}

// The number that the whole text is; nothing for any other text.
std::optional<double> parse_number(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), end, number);
  if (fault != std::errc{} || rest != end) return std::nullopt;
  return number;
}

// What stands before and after '='; `form` is shown when they are not there.
Parts parse_tenant_and_kind(const std::string& name, const std::string& text, const char* form) {
  const size_t colon = text.find(':');
  const size_t equals = text.find('=');
  if (colon == std::string::npos || equals == std::string::npos || equals < colon)
    refuse_value(name, text, form);
  Parts parts;
  parts.limit.text = text;
  parts.limit.tenant = text.substr(0, colon);
  parts.amount = text.substr(equals + 1);
  if (parts.limit.tenant != "*" && !valid_tenant(parts.limit.tenant))
    refuse_value(name, text, "a tenant's name or * before the colon");
  const auto kind = find_usage_kind(text.substr(colon + 1, equals - colon - 1));
  if (!kind)
    refuse_value(name, text, fmt::format("one of {} after the colon", fmt::join(kNames, ", ")));
  parts.limit.kind = *kind;
  return parts;
}

}  // namespace

std::string_view usage_kind_name(UsageKind kind) { return kNames[static_cast<size_t>(kind)]; }

UsageLimit parse_rate(const std::string& name, const std::string& text) {
  constexpr const char* kForm = "TENANT:KIND=N/s or *:KIND=N/s, like alice:requests=5/s";
  auto [limit, amount] = parse_tenant_and_kind(name, text, kForm);
  if (limit.kind == UsageKind::kDiskBytes)
    refuse_value(name, text, "a kind that goes by the second; disk-bytes has a --quota");
  if (!amount.ends_with("/s")) refuse_value(name, text, kForm);
  const auto rate = parse_number(amount.substr(0, amount.size() - 2));
  if (!rate || !std::isfinite(*rate) || *rate < 0.001 || *rate > 1e12)
    refuse_value(name, text, "a number from 0.001 to 1e12 before /s");
  limit.amount = *rate;
  return limit;
}

UsageLimit parse_quota(const std::string& name, const std::string& text) {
  constexpr const char* kForm = "TENANT:KIND=N or *:KIND=N, like *:trained-tokens=1000000";
  auto [limit, amount] = parse_tenant_and_kind(name, text, kForm);
  if (limit.kind == UsageKind::kDiskBytes) {
    limit.amount = static_cast<double>(parse_size(name, amount));
    return limit;
  }
  const auto count = parse_whole_number(amount);
  // Doubles count so far without a gap.
  if (!count || *count < 1 || *count > 1LL << 53)
    refuse_value(name, text, "a whole number from 1 to 9007199254740992 after =");
  limit.amount = static_cast<double>(*count);
  return limit;
}

void check_distinct(const std::string& name, std::span<const UsageLimit> limits) {
  std::set<std::pair<std::string, UsageKind>> seen;
  for (const UsageLimit& limit : limits) {
    if (seen.emplace(limit.tenant, limit.kind).second) continue;
    refuse_value(name, limit.text,
                 fmt::format("one limit of {} for '{}', not two", usage_kind_name(limit.kind),
                             limit.tenant));
  }
}

}  // namespace strata::server
