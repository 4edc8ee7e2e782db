// SPDX-License-Identifier: Apache-2.0
// POST session_heartbeat: {session_id}: a sign of life. 410 when it has ended.
#include <fmt/format.h>

#include "base/clock.h"
#include "server/http/message.h"
#include "server/tinker/operations/operations.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

Response touch_session(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "session_heartbeat");
  const std::string id = json.root().string("session_id");
  if (service.sessions().touch(id, request.tenant, now_seconds())) {
    return json_response(200, JsonObject{{"type", "session_heartbeat"}}.text());
  }
  const std::optional<SessionRow> row = service.parts().store.find_session(id);
  if (!row || row->tenant != request.tenant)
    return error_response(404, fmt::format("no such session: {}", id.substr(0, 100)));
  return error_response(410, fmt::format("session {} has ended", id));
}

}  // namespace

constinit const Operation kSessionHeartbeat = {.path = "session_heartbeat",
                                               .run = touch_session,
                                               .scope = Scope::kRead,
                                               .effect = Effect::kUpkeep,
                                               .size = BodySize::kTiny};

}  // namespace strata::server
