// SPDX-License-Identifier: Apache-2.0
// Sessions: start-up of a client, its sign of life, its end.
#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "server/crypto.h"
#include "server/json.h"
#include "server/service/service.h"

namespace strata::server {
namespace {

constexpr size_t kMaxTags = 64;
constexpr size_t kMaxTagBytes = 16 << 10;  // of all, as JSON
constexpr size_t kMaxDisplayName = 256;
constexpr size_t kMaxProject = 64;

bool valid_project(std::string_view id) {
  if (id.empty() || id.size() > kMaxProject) return false;
  for (const char c : id) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '.' || c == '_' || c == '-';
    if (!fits) return false;
  }
  return true;
}

size_t num_characters(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

Response Service::client_config(const Request& request) {
  const JsonBody body(request.body, "client/config");
  // Chunks must fit the body limit after serialization, which the client only estimates.
  const int64_t chunk_bytes = std::min<int64_t>(5'000'000, options_.max_body / 2);
  return json_response(200, JsonObject{{"use_pyqwest_transport", false},
                                       {"pjwt_auth_enabled", false},
                                       {"credential_default_source", "api_key"},
                                       {"parallel_fwdbwd_chunks", true},
                                       {"proto_compress_fwdbwd", true},
                                       {"proto_write_fwdbwd", true},
                                       {"fwd_via_fwdbwd", true},
                                       {"create_model_via_load_weights", true},
                                       {"sample_use_retrieve_futures", false},
                                       {"sample_join_sampling_session", false},
                                       {"custom_loss_server_side", false},
                                       {"sample_no_retries", false},
                                       {"fwdbwd_max_chunk_len", 1024},
                                       {"fwdbwd_max_chunk_bytes_count", chunk_bytes},
                                       {"sample_max_concurrent_requests",
                                        std::min<int64_t>(2000, options_.max_queued_samples)}}
                                .text());
}

Response Service::capabilities(const Request&) {
  JsonArray models;
  for (const BaseName& name : parts_.names.names()) {
    const api::BaseInfo& base = info(api::BaseId{name.model});
    models.add(JsonObject{{"model_name", name.name},
                          {"max_context_length", base.max_context},
                          {"max_trained_length", base.longest_datum},
                          {"trainable", name.adapter.empty()},
                          {"sampleable", true}});
  }
  return json_response(200, JsonObject{{"supported_models", models}}.text());
}

Response Service::create_session(const Request& request) {
  const JsonBody json(request.body, "create_session");
  const Fields body = json.root();
  if (stopping_) return error_response(503, "the server is shutting down");
  SessionRow row;
  row.id = random_id();
  row.tenant = request.tenant;
  row.created_at = wall_seconds();
  row.sdk_version = body.string_or("sdk_version", "").substr(0, 64);
  if (body.has("tags")) {
    const std::vector<std::string> tags = body.strings("tags");
    if (tags.size() > kMaxTags) {
      body.fail("tags", fmt::format("has {} entries, the limit is {}", tags.size(), kMaxTags));
    }
    row.tags = JsonArray(tags).text();
    if (row.tags.size() > kMaxTagBytes) {
      body.fail("tags",
                fmt::format("have {} bytes, the limit is {}", row.tags.size(), kMaxTagBytes));
    }
  }
  row.user_metadata = read_metadata(body);
  row.display_name = body.maybe_string("display_name");
  if (row.display_name && num_characters(*row.display_name) > kMaxDisplayName) {
    body.fail("display_name", fmt::format("has {} characters, the limit is {}",
                                          num_characters(*row.display_name), kMaxDisplayName));
  }
  row.project_id = body.string_or("project_id", "default");
  if (!valid_project(row.project_id)) {
    body.fail("project_id", "wanted 1 to 64 of A-Z a-z 0-9 . _ -");
  }
  const int64_t alive = sessions_.count_of(request.tenant);
  // The last quarter is for those who train: a key without that right cannot take it from them.
  if (request.scope < Scope::kAll && alive >= options_.max_sessions - options_.max_sessions / 4) {
    return busy_response(
        429, fmt::format("create_session: {} sessions of this tenant are alive, and a {} key takes "
                         "no more than three quarters of them (--max-sessions-per-tenant {}); "
                         "finish some",
                         alive, scope_name(request.scope), options_.max_sessions));
  }
  if (alive >= options_.max_sessions) {
    return error_response(
        400, fmt::format("create_session: {} sessions are alive (--max-sessions-per-tenant); "
                         "finish some, or wait until those without a sign of life end",
                         alive));
  }
  const Idempotency key{std::string(request.header("x-idempotency-key").substr(0, 256)),
                        static_cast<int64_t>(fingerprint_of(request.body))};
  const std::string id = parts_.store.add_session(row, key);
  request.note(id);
  // A repeated key names the session of then, which may have ended since.
  if (id == row.id) sessions_.add(id, request.tenant, now_seconds());
  return json_response(200, JsonObject{{"type", "create_session"}, {"session_id", id}}.text());
}

void Service::require_session(const Request& request, const std::string& id) {
  request.note(id);
  if (sessions_.contains(id, request.tenant)) return;
  const std::optional<SessionRow> row = parts_.store.find_session(id);
  if (!row || row->tenant != request.tenant) {
    throw Error(ErrorCode::kNotFound, fmt::format("no such session: {}", id.substr(0, 100)));
  }
  std::string why = row->end_detail.value_or("");
  if (why.empty()) why = row->end_reason.value_or(row->state);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("session {} has ended ({}): it takes no more work", id, why));
}

Response Service::heartbeat(const Request& request) {
  const JsonBody json(request.body, "session_heartbeat");
  const std::string id = json.root().string("session_id");
  if (sessions_.touch(id, request.tenant, now_seconds())) {
    return json_response(200, JsonObject{{"type", "session_heartbeat"}}.text());
  }
  const std::optional<SessionRow> row = parts_.store.find_session(id);
  if (!row || row->tenant != request.tenant) {
    return error_response(404, fmt::format("no such session: {}", id.substr(0, 100)));
  }
  return error_response(410, fmt::format("session {} has ended", id));
}

Response Service::finish_session(const Request& request) {
  const std::string& id = request.parts.at(0);
  const JsonBody json(request.body, "finish");
  const Fields body = json.root();
  std::string reason = "success";
  if (body.has("reason")) reason = body.object("reason").string_or("type", "success");
  if (reason != "success" && reason != "errored" && reason != "interrupted") {
    body.fail("reason", "wanted a type of success, errored or interrupted");
  }
  const std::string detail = body.string_or("detail", "").substr(0, 4096);
  std::optional<SessionRow> row = parts_.store.find_session(id);
  if (!row || row->tenant != request.tenant) {
    return error_response(404, fmt::format("no such session: {}", id.substr(0, 100)));
  }
  if (row->state == "active") {  // else the first reason stays
    if (std::optional<Response> refused = may_not_end(request, id)) return std::move(*refused);
    end_session(id, "finished", reason, detail);
    row = parts_.store.find_session(id);
  }
  const std::string kept = row->end_detail.value_or("");
  return json_response(
      200, JsonObject{{"session_id", id},
                      {"reason", JsonObject{{"type", row->end_reason.value_or(reason)}}},
                      {"detail", kept.empty() ? Json(nullptr) : Json(kept)},
                      {"finished_at", rfc3339(row->ended_at.value_or(wall_seconds()))}}
               .text());
}

// The end of a session takes its unsaved models and its samplers with it: not for a key that could
// not have made them.
std::optional<Response> Service::may_not_end(const Request& request, const std::string& id) {
  if (request.scope == Scope::kAll) return std::nullopt;
  const bool has_models = !models_.of_session(id).empty();
  // Those of before a restart are not alive until they are used, and end all the same.
  const bool has_samplers = samplers_.count_of(id) > 0 || !parts_.store.samplers_of(id).empty();
  const Scope wanted = has_models ? Scope::kAll : has_samplers ? Scope::kSample : Scope::kRead;
  if (request.scope >= wanted) return std::nullopt;
  return error_response(
      403, fmt::format("finish: session {} has {}, which would end with it, and this key is {}", id,
                       has_models ? "models" : "sampling sessions", scope_name(request.scope)));
}

void Service::end_session(const std::string& id, const std::string& state,
                          const std::string& reason, const std::string& detail) {
  parts_.store.end_session(id, state, reason, detail, wall_seconds());
  sessions_.remove(id);
  dispatch_.end_session({id}, state == "timed_out"
                                  ? fmt::format("session {} timed out: {}", id, detail)
                                  : fmt::format("session {} was finished by its client", id));
  for (const std::string& model : models_.of_session(id)) drop_model(model);
  for (const std::string& sampler : samplers_.of_session(id)) drop_sampler(sampler);
  log(LogLevel::kInfo, fmt::format("session {} ended: {}", id, state));
}

}  // namespace strata::server
