// SPDX-License-Identifier: Apache-2.0
// GET healthz: the process answers. GET readyz: new work may be sent here, else 503 with why not.
// Both without a key, so they name no path and no tenant.
#include "server/http/message.h"
#include "server/tinker/operations/operations.h"

namespace strata::server {
namespace {

Response health(Service&, const Request&) {
  return json_response(200, JsonObject{{"status", "ok"}}.text());
}

Response ready(Service& service, const Request&) { return service.readiness(); }

}  // namespace

constinit const Operation kHealth = {.method = "GET",
                                     .path = "healthz",
                                     .run = health,
                                     .body = BodyKind::kNone,
                                     .scope = Scope::kRead,
                                     .effect = Effect::kReads,
                                     .needs_key = false};

constinit const Operation kReady = {.method = "GET",
                                    .path = "readyz",
                                    .run = ready,
                                    .body = BodyKind::kNone,
                                    .scope = Scope::kRead,
                                    .effect = Effect::kReads,
                                    .needs_key = false};

}  // namespace strata::server
