// SPDX-License-Identifier: Apache-2.0
// POST sessions/{}/finish: {reason: {type}, detail}: ends a session, with its unsaved models and
// its samplers; of one that has ended, how it did. 403 for a key that could not have made what
// ends.
#include <fmt/format.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "server/http/message.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/protocol/common_fields.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

constexpr size_t kMostDetail = 4096;  // bytes

// The end of a session takes its unsaved models and its samplers with it: not for a key that could
// not have made them.
std::optional<Response> refuse_end_beyond_scope(Service& service, const Request& request,
                                                const std::string& id) {
  if (request.scope == Scope::kAll) return std::nullopt;
  const bool has_models = !service.models().of_session(id).empty();
  // Those of before a restart are not alive until they are used, and end all the same.
  const bool has_samplers =
      service.samplers().has_any(id) || service.parts().store.has_samplers(id);
  const Scope wanted = has_models ? Scope::kAll : has_samplers ? Scope::kSample : Scope::kRead;
  if (request.scope >= wanted) return std::nullopt;
  return error_response(
      403, fmt::format("finish: session {} has {}, which would end with it, and this key is {}", id,
                       has_models ? "models" : "sampling sessions", scope_name(request.scope)));
}

std::string read_reason(const text::Fields& body) {
  std::string reason = "success";
  if (body.has("reason")) reason = body.object("reason").string_or("type", "success");
  if (reason != "success" && reason != "errored" && reason != "interrupted")
    body.fail("reason", "wanted a type of success, errored or interrupted");
  return reason;
}

// How the session ended; `reason` where that is not known.
Response ended_response(const SessionRow& row, const std::string& reason) {
  const std::string kept = row.end_detail.value_or("");
  return json_response(200,
                       JsonObject{{"session_id", row.id},
                                  {"reason", JsonObject{{"type", row.end_reason.value_or(reason)}}},
                                  {"detail", kept.empty() ? Json(nullptr) : Json(kept)},
                                  {"finished_at", rfc3339(row.ended_at.value_or(wall_seconds()))}}
                           .text());
}

Response finish_session(Service& service, const Request& request) {
  const std::string& id = request.parts.at(0);
  const text::JsonBody json(request.body, "finish");
  const text::Fields body = json.root();
  const std::string reason = read_reason(body);
  const std::string detail = whole_characters(body.string_or("detail", ""), kMostDetail);
  std::optional<SessionRow> row = service.parts().store.find_session(id);
  if (!row || row->tenant != request.tenant)
    return error_response(404, fmt::format("no such session: {}", id.substr(0, 100)));
  if (row->state == "active") {  // else the first reason stays
    if (std::optional<Response> refused = refuse_end_beyond_scope(service, request, id))
      return std::move(*refused);
    service.end_session(id, "finished", reason, detail);
    row = service.parts().store.find_session(id);
  }
  return ended_response(*row, reason);
}

}  // namespace

constinit const Operation kFinishSession = {.path = "sessions/{}/finish",
                                            .run = finish_session,
                                            .scope = Scope::kRead,
                                            .size = BodySize::kTiny};

}  // namespace strata::server
