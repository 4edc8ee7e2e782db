// SPDX-License-Identifier: Apache-2.0
// GET usage: what the tenant's keys have used and may use; for a key of the operator's everybody's.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "server/http/message.h"
#include "server/tinker/operations/operations.h"

namespace strata::server {
namespace {

Json key_usage_json(const UsageRow& row) {
  return JsonObject{{"key", row.key_id},
                    {"requests", row.counts[0]},
                    {"trained_tokens", row.counts[1]},
                    {"sampled_tokens", row.counts[2]},
                    {"prompt_tokens", row.counts[3]}};
}

struct TenantUsage {
  std::string tenant;
  JsonArray keys, limits;
};

std::vector<TenantUsage> usage_by_tenant(const Usage& usage, const Request& request) {
  std::vector<TenantUsage> tenants;
  const auto all = request.is_admin ? std::nullopt : std::optional<std::string>(request.tenant);
  for (const UsageRow& row : usage.rows(all)) {
    if (tenants.empty() || tenants.back().tenant != row.tenant) {
      tenants.push_back({row.tenant, {}, {}});
      for (const std::string& limit : usage.limits(row.tenant)) tenants.back().limits.add(limit);
    }
    tenants.back().keys.add(key_usage_json(row));
  }
  return tenants;
}

Response usage_response(StateStore& store, const std::vector<TenantUsage>& tenants) {
  JsonArray out;
  for (const TenantUsage& tenant : tenants) {
    out.add(JsonObject{{"tenant", tenant.tenant},
                       {"disk_bytes", store.stored_bytes(tenant.tenant)},
                       {"keys", tenant.keys},
                       {"limits", tenant.limits}});
  }
  return json_response(200, JsonObject{{"tenants", out}}.text());
}

void get_usage(Service& service, Request&& request, const Respond& respond) {
  const auto job = [&store = service.parts().store, respond,
                    tenants = usage_by_tenant(service.parts().usage, request)] {
    respond(run_for_response([&] { return usage_response(store, tenants); }));
  };
  service.parts().aside ? service.parts().aside(request.tenant, job) : job();
}

}  // namespace

constinit const Operation kUsage = {.method = "GET",
                                    .path = "usage",
                                    .run = get_usage,
                                    .body = BodyKind::kNone,
                                    .scope = Scope::kRead,
                                    .effect = Effect::kReads};

}  // namespace strata::server
