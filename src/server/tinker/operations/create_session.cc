// SPDX-License-Identifier: Apache-2.0
// POST create_session: {tags, user_metadata, display_name, project_id, sdk_version}, all optional.
// A session that a client keeps alive with heartbeats. X-Idempotency-Key: sent again, it is the
// same.
#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/crypto.h"
#include "server/http/message.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/protocol/common_fields.h"
#include "server/tinker/protocol/idempotency.h"
#include "server/tinker/refusals.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

constexpr size_t kMaxTags = 64;
constexpr size_t kMaxTagBytes = 16 << 10;  // of all, as JSON
constexpr size_t kMaxVersion = 64;         // bytes
constexpr size_t kMaxDisplayName = 256;

size_t num_characters(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// As JSON.
std::string read_tags_as_json(const text::Fields& body) {
  const std::vector<std::string> tags = body.strings("tags");
  if (tags.size() > kMaxTags) {
    body.fail("tags", fmt::format("has {} entries, the limit is {}", tags.size(), kMaxTags));
  }
  std::string text = JsonArray(tags).text();
  if (text.size() > kMaxTagBytes) {
    body.fail("tags", fmt::format("have {} bytes, the limit is {}", text.size(), kMaxTagBytes));
  }
  return text;
}

std::optional<std::string> read_display_name(const text::Fields& body) {
  std::optional<std::string> name = body.maybe_string("display_name");
  if (name && num_characters(*name) > kMaxDisplayName) {
    body.fail("display_name", fmt::format("has {} characters, the limit is {}",
                                          num_characters(*name), kMaxDisplayName));
  }
  return name;
}

SessionRow read_new_session(const text::Fields& body, const std::string& tenant) {
  SessionRow row;
  row.id = random_id();
  row.tenant = tenant;
  row.created_at = wall_seconds();
  row.sdk_version = whole_characters(body.string_or("sdk_version", ""), kMaxVersion);
  if (body.has("tags")) row.tags = read_tags_as_json(body);
  row.user_metadata = read_metadata(body);
  row.display_name = read_display_name(body);
  row.project_id = body.string_or("project_id", "default");
  if (!is_valid_project(row.project_id)) {
    body.fail("project_id", "wanted 1 to 64 of A-Z a-z 0-9 . _ -");
  }
  return row;
}

// The refusal of a tenant that has as many alive as it may, or as this key may take.
std::optional<Response> refuse_over_session_limit(Service& service, const Request& request) {
  const int64_t alive = service.sessions().count_of(request.tenant);
  // The last quarter is for those who train: a key without that right cannot take it from them.
  if (request.scope < Scope::kAll &&
      alive >= service.options().max_sessions - service.options().max_sessions / 4) {
    return refuse(kTooManySessionsForScope,
                  {alive, scope_name(request.scope), service.options().max_sessions});
  }
  if (alive >= service.options().max_sessions) return refuse(kTooManySessions, {alive});
  return std::nullopt;
}

Response create_session(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "create_session");
  if (service.is_stopping()) return refuse(kStopping);
  const SessionRow row = read_new_session(json.root(), request.tenant);
  if (auto refused = refuse_over_session_limit(service, request)) return std::move(*refused);
  const std::string id = service.parts().store.ensure_session(row, idempotency_of(request));
  request.note(id);
  // A repeated key names the session of then, which may have ended since.
  if (id == row.id) service.sessions().add(id, request.tenant, now_seconds());
  return json_response(200, JsonObject{{"type", "create_session"}, {"session_id", id}}.text());
}

}  // namespace

constinit const Operation kCreateSession = {
    .path = "create_session", .run = create_session, .scope = Scope::kRead};

}  // namespace strata::server
