// What keys use: counted as requests, passes and samples go by, held against the operator's limits,
// and told to whoever asks with a key.
#include <fmt/format.h>

#include "base/clock.h"
#include "server/protocol/json_body.h"
#include "server/service/service.h"

namespace strata::server {
namespace {

std::string key_json(const UsageRow& row) {
  return fmt::format("{{\"key\":{},\"requests\":{},\"trained_tokens\":{},\"sampled_tokens\":{}}}",
                     json_quoted(row.key_id), row.counts[0], row.counts[1], row.counts[2]);
}

// A tenant's keys, limits and disk.
struct TenantUsage {
  std::string tenant;
  std::string keys, limits;  // JSON, without brackets
};

}  // namespace

std::optional<Response> Service::admit(const Request& request, const Route* route) {
  if (route != nullptr && route->effect == Effect::kUpkeep) return std::nullopt;
  const double now = now_seconds();
  std::optional<Response> refused =
      parts_.usage.refuses(request.tenant, UsageKind::kRequests, 1, now);
  if (!refused) parts_.usage.add(request.tenant, request.key_id, UsageKind::kRequests, 1, now);
  return refused;
}

Service::TokenUse Service::tokens_of(const api::Command& command) {
  TokenUse use;
  if (const auto* pass = std::get_if<api::ForwardBackward>(&command.op)) {
    for (const api::Datum& datum : pass->data)
      use.most += static_cast<int64_t>(datum.tokens.size());
  } else if (const auto* sample = std::get_if<api::Sample>(&command.op)) {
    use = {UsageKind::kSampledTokens, sample->num_samples * sample->max_tokens};
  }
  return use;
}

std::optional<Response> Service::over_limit(const api::Command& command) {
  const TokenUse use = tokens_of(command);
  if (use.most == 0) return std::nullopt;
  // What was accepted and is sent again takes nothing more.
  if (command.seq_id > 0 && dispatch_.knows(command.model, command.seq_id)) return std::nullopt;
  return parts_.usage.refuses(command.tenant.text, use.kind, use.most, now_seconds());
}

void Service::count_accepted(const TokenUse& use, Pending& pending) {
  if (use.most == 0) return;
  if (use.kind == UsageKind::kTrainedTokens) {
    parts_.usage.add(pending.tenant, pending.key_id, use.kind, use.most, now_seconds());
  } else {
    pending.tokens = parts_.usage.reserve(pending.tenant, use.kind, use.most);
  }
}

void Service::count_settled(Pending& pending, const api::Result& result, double now) {
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

void Service::usage(const Request& request, const Respond& respond) {
  std::vector<TenantUsage> tenants;
  const auto all = request.is_admin ? std::nullopt : std::optional<std::string>(request.tenant);
  for (const UsageRow& row : parts_.usage.rows(all)) {
    if (tenants.empty() || tenants.back().tenant != row.tenant) {
      tenants.push_back({row.tenant, "", ""});
      for (const std::string& limit : parts_.usage.limits(row.tenant))
        tenants.back().limits += (tenants.back().limits.empty() ? "" : ",") + json_quoted(limit);
    }
    tenants.back().keys += (tenants.back().keys.empty() ? "" : ",") + key_json(row);
  }
  const auto job = [&store = parts_.store, respond, tenants] {
    respond(answer_of([&] {
      std::string out;
      for (const TenantUsage& tenant : tenants) {
        out += fmt::format("{}{{\"tenant\":{},\"disk_bytes\":{},\"keys\":[{}],\"limits\":[{}]}}",
                           out.empty() ? "" : ",", json_quoted(tenant.tenant),
                           store.stored_bytes(tenant.tenant), tenant.keys, tenant.limits);
      }
      return json_response(200, fmt::format("{{\"tenants\":[{}]}}", out));
    }));
  };
  parts_.aside ? parts_.aside(job) : job();
}

}  // namespace strata::server
