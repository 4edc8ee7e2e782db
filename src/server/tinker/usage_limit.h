// SPDX-License-Identifier: Apache-2.0
// UsageLimit: one line of --rate or --quota, TENANT|*:KIND=N. `*` gives every tenant that has no
// line of its own for the kind the same, each by itself.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace strata::server {

enum class UsageKind : uint8_t {
  kRequests,       // with a key, but polls and signs of life
  kTrainedTokens,  // of data, of forward alone too, when they are accepted
  kSampledTokens,  // that samples yield
  kPromptTokens,   // of samples' prompts, once for all of a request, when it is accepted
  kDiskBytes,      // of checkpoints whose files are there; quotas only
};
constexpr size_t kNumUsageKinds = 5;

constexpr size_t kNumCountedKinds = 4;  // disk bytes are not counted up

// requests, trained-tokens, sampled-tokens, prompt-tokens, disk-bytes
std::string_view usage_kind_name(UsageKind kind);

struct UsageLimit {
  std::string tenant;  // or "*"
  UsageKind kind = UsageKind::kRequests;
  double amount = 0;  // a second for a rate
  std::string text;   // as it was given
};

// "alice:requests=5/s"; above 0. An Error that names the option.
UsageLimit parse_rate(const std::string& name, const std::string& text);
// "*:trained-tokens=1000000", "alice:disk-bytes=10GiB"; a whole number.
UsageLimit parse_quota(const std::string& name, const std::string& text);
// An Error when two lines limit the same of one tenant.
void check_distinct(const std::string& name, std::span<const UsageLimit> limits);

}  // namespace strata::server
