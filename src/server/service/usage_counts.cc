// SPDX-License-Identifier: Apache-2.0
// What keys use: counted as requests, passes and samples go by, and held against the operator's
// limits.
#include <fmt/format.h>

#include "base/clock.h"
#include "server/http/router.h"
#include "server/service/service.h"

namespace strata::server {
namespace {

constexpr double kBehind = 1.0;  // ticks that come later than this, not one alone: no new work

}  // namespace

std::optional<Response> Service::shed(const Request& request) const {
  if (clock_.behind() <= kBehind || request.route == nullptr ||
      request.route->size == BodySize::kSmall) {
    return std::nullopt;
  }
  return busy_response(
      503, fmt::format("the server is {:.1f} s behind; passes and samples wait until it is not",
                       clock_.behind()));
}

std::optional<Response> Service::admit(const Request& request) {
  if (request.route != nullptr && request.route->effect == Effect::kUpkeep) return std::nullopt;
  if (std::optional<Response> refused = shed(request)) return refused;
  const double now = now_seconds();
  std::optional<Response> refused =
      parts_.usage.refuses(request.tenant, UsageKind::kRequests, 1, now);
  if (!refused) parts_.usage.add(request.tenant, request.key_id, UsageKind::kRequests, 1, now);
  return refused;
}

Service::TokenUse Service::tokens_of(const api::Command& command) {
  TokenUse use;
  if (const auto* pass = std::get_if<api::ForwardBackward>(&command.op)) {
    for (const api::Datum& datum : pass->data) use.trained += std::ssize(datum.tokens);
  } else if (const auto* sample = std::get_if<api::Sample>(&command.op)) {
    use.prompt = std::ssize(sample->prompt);
    use.most_sampled = sample->num_samples * sample->max_tokens;
  }
  return use;
}

std::optional<Response> Service::over_limit(const api::Command& command) {
  const TokenUse use = tokens_of(command);
  std::optional<Response> refused;
  for (const auto& [kind, amount] : {std::pair(UsageKind::kTrainedTokens, use.trained),
                                     std::pair(UsageKind::kPromptTokens, use.prompt),
                                     std::pair(UsageKind::kSampledTokens, use.most_sampled)}) {
    if (amount == 0 || refused) continue;
    refused = parts_.usage.refuses(command.tenant.text, kind, amount, now_seconds());
  }
  return refused;
}

void Service::count_accepted(const TokenUse& use, PendingCommand& pending) {
  const double now = now_seconds();
  const auto add = [&](UsageKind kind, int64_t amount) {
    if (amount > 0) parts_.usage.add(pending.tenant, pending.key_id, kind, amount, now);
  };
  add(UsageKind::kTrainedTokens, use.trained);
  add(UsageKind::kPromptTokens, use.prompt);
  if (use.most_sampled == 0) return;
  pending.tokens =
      parts_.usage.reserve(pending.tenant, UsageKind::kSampledTokens, use.most_sampled);
}

void Service::count_settled(PendingCommand& pending, const api::Result& result, double now) {
  pending.tokens.reset();
  const auto* output = std::get_if<api::SampleOutput>(&result.outcome);
  if (output == nullptr) return;
  int64_t tokens = 0;
  for (const api::SampledSequence& s : output->sequences)
    tokens += static_cast<int64_t>(s.tokens.size());
  parts_.usage.add(pending.tenant, pending.key_id, UsageKind::kSampledTokens, tokens, now);
}

void Service::keep_usage() {
  const std::vector<UsageRow> rows = parts_.usage.changed();
  parts_.store.put_usage(rows);
  parts_.usage.wrote(rows);
}

}  // namespace strata::server
