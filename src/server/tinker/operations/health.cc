// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/operations/health.h"

#include "server/http/message.h"

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
