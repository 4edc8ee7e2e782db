// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/rest/rest.h"

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "base/crypto.h"
#include "base/error.h"
#include "server/http/message.h"
#include "server/tinker/protocol/common_fields.h"
#include "server/tinker/protocol/idempotency.h"
#include "server/tinker/refusals.h"
#include "server/tinker/service/model_table.h"
#include "server/tinker/service/refusals.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

Response ok() { return json_response(200, "{}"); }

// Under the number of the session that the body names; else a run of its own.
RunRow make_copy_run(StateStore& store, const std::string& tenant, const text::Fields& body,
                     double now) {
  RunRow run;
  run.tenant = tenant;
  run.created_at = run.last_request_at = now;
  if (!body.has("session_id")) {
    run.project_id = body.string_or("destination_project_id", "default");
    check_project("destination_project_id", run.project_id);
    run.id = ModelTable::id_of("copy-" + random_id(), 0);
    return run;
  }
  run.session_id = body.string("session_id");
  run.model_seq = body.integer("model_seq_id", 0, INT64_MAX);
  const auto session = store.find_session(*run.session_id);
  if (!session || session->tenant != tenant) fail_missing("session", *run.session_id);
  run.project_id = session->project_id;
  run.id = ModelTable::id_of(*run.session_id, *run.model_seq);
  return run;
}

// The path of the copy that was made when this key came before.
std::optional<std::string> find_known_copy(StateStore& store, const std::string& tenant,
                                           const Idempotency& key) {
  if (key.name.empty()) return std::nullopt;
  return store.find_remembered(tenant, "copy", key);
}

Response copied_response(const std::string& path) {
  return json_response(200, JsonObject{{"tinker_path", path}}.text());
}

Response refuse_checkpoint_without_kind(Rest& /*rest*/, const Request& request) {
  return error_response(400, fmt::format("checkpoint '{}': want weights/, sampler_weights/ or "
                                         "external_weights/ before the name",
                                         request.parts.at(1).substr(0, 100)));
}

// Takes the next ones of a session's runs, which may be thousands. True where there are more; else
// it has answered.
bool set_next_projects(StateStore& store, const std::string& session, const std::string& project,
                       int64_t& last, const Respond& respond) {
  bool has_more = false;
  Response answer = run_for_response([&] {
    has_more = store.set_project_batch(session, project, last);
    return ok();
  });
  if (!has_more) {
    respond(std::move(answer));
  } else {  // others get at the store
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return has_more;
}

}  // namespace

void check_project(std::string_view name, const std::string& project) {
  if (is_valid_project(project)) return;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: want [A-Za-z0-9._-]{{1,64}}", name));
}

void fail_missing(const char* what, const std::string& id) {
  throw Error(ErrorCode::kNotFound, fmt::format("{} '{}' does not exist", what, id.substr(0, 100)));
}

CheckpointRow Rest::find_checkpoint(const Request& request, bool may_be_public) {
  const auto kind = parse_checkpoint_kind(request.parts.at(1));
  if (!kind) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("checkpoint: got '{}/...', want weights/, sampler_weights/ or "
                            "external_weights/ and a name",
                            request.parts.at(1).substr(0, 40)));
  }
  return parts_.registry.require_checkpoint({request.parts.at(0), *kind, request.parts.at(2)},
                                            request.tenant, may_be_public, wall_seconds());
}

void Rest::set_project(const Request& request, const Respond& respond) {
  const std::string& id = request.parts.at(0);
  const text::JsonBody json(request.body, "project");
  const std::string project = json.root().string("project_id");
  check_project("project_id", project);
  const auto row = parts_.store.find_session(id);
  if (!row || row->tenant != request.tenant) fail_missing("session", id);
  const auto piece = [this, id, project, respond, last = std::make_shared<int64_t>(-1)] {
    return set_next_projects(parts_.store, id, project, *last, respond);
  };
  if (!parts_.worker.try_post_pieces(request.tenant, piece)) respond(refuse(kTooManyChanges));
}

// What waits for a disk. Faults are answered as the router answers those of
// handlers.
void Rest::answer_on_worker(const Request& request, const Respond& respond,
                            std::function<Response()> work) {
  const bool is_taken = parts_.worker.try_post(
      request.tenant, [respond, work = std::move(work)] { respond(run_for_response(work)); });
  if (!is_taken) respond(refuse(kTooManyChanges));
}

void Rest::delete_checkpoint(const Request& request, const Respond& respond) {
  answer_on_worker(request, respond,
                   [this, row = find_checkpoint(request, /*may_be_public=*/false)] {
                     if (!parts_.store.delete_checkpoint(row.id, wall_seconds())) {
                       fail_missing("checkpoint", path_of(row).text());
                     }
                     return ok();
                   });
}

void Rest::set_ttl(const Request& request, const Respond& respond) {
  const text::JsonBody json(request.body, "ttl");
  const text::Fields body = json.root();
  if (!body.has("ttl_seconds") && !body.is_null("ttl_seconds")) {
    body.fail("ttl_seconds", "want seconds, or null for no end");
  }
  const auto ttl = read_ttl(body);
  const CheckpointRow row = find_checkpoint(request, /*may_be_public=*/false);
  std::optional<double> expires_at;
  if (ttl) expires_at = wall_seconds() + static_cast<double>(*ttl);
  answer_on_worker(request, respond, [this, id = row.id, expires_at] {
    parts_.store.set_expiry(id, expires_at);
    return ok();
  });
}

template <bool is_public>
void Rest::set_public(const Request& request, const Respond& respond) {
  // Twice is fine: a 409 would be retried for five minutes.
  answer_on_worker(request, respond,
                   [this, id = find_checkpoint(request, /*may_be_public=*/false).id] {
                     parts_.store.set_public(id, is_public);
                     return ok();
                   });
}

void Rest::copy_weights(const Request& request, const Respond& respond) {
  const text::JsonBody json(request.body, "copy_weights");
  const text::Fields body = json.root();
  refuse_token(body);
  const TinkerPath path = parse_tinker_path(body.string("source_path"));
  request.note(path.text());
  const auto ttl = read_ttl(body);
  const double now = wall_seconds();
  RunRow run = make_copy_run(parts_.store, request.tenant, body, now);
  const Idempotency key = idempotency_of(request);
  // Before anything else: the source may be gone by the time of a retry.
  if (const auto known = find_known_copy(parts_.store, request.tenant, key))
    return respond(copied_response(*known));
  const CheckpointRow source =
      parts_.registry.require_checkpoint(path, request.tenant, /*may_be_public=*/true, now);
  std::shared_ptr<void> quota;
  auto full =
      reserve_disk_quota(parts_.usage, parts_.store, request.tenant, source.size_bytes, quota);
  if (full) return respond(std::move(*full));
  run.base_model = source.base_model;
  run.lora = source.lora;
  answer_on_worker(
      request, respond,
      [this, source, run, ttl, key, now, quota, held = parts_.registry.lease(source.id)] {
        return copied_response(parts_.registry.copy_to_new_run(source, run, ttl, key, now));
      });
}

namespace {

// Rows of calls that read, and of those of them whose clients may leave while a list is made.
constexpr Endpoint<Rest> read_row(const char* path, Endpoint<Rest>::Later run) {
  return {.method = "GET",
          .path = path,
          .run = run,
          .body = BodyKind::kNone,
          .scope = Scope::kRead,
          .effect = Effect::kReads};
}
constexpr Endpoint<Rest> list_row(const char* path, Endpoint<Rest>::Later run) {
  Endpoint<Rest> row = read_row(path, run);
  row.watches_peer = true;
  return row;
}
// One that a signed URL opens.
constexpr Endpoint<Rest> file_row(const char* path, Endpoint<Rest>::Later run) {
  Endpoint<Rest> row = read_row(path, run);
  row.needs_key = false;
  return row;
}

}  // namespace

std::span<const Endpoint<Rest>> Rest::endpoints() {
  using enum BodyKind;
  static constexpr Endpoint<Rest> kRows[] = {
      list_row("training_runs", answer_list<&Rest::list_runs>),
      list_row("training_runs/{}", answer_list<&Rest::get_run>),
      list_row("training_runs/{}/checkpoints", answer_list<&Rest::list_run_checkpoints>),
      list_row("checkpoints", answer_list<&Rest::list_checkpoints>),
      list_row("sessions", answer_list<&Rest::list_sessions>),
      list_row("sessions/{}", answer_list<&Rest::get_session>),
      read_row("training_runs/{}/checkpoints/{}/{}/external_weights_urls",
               answer<&Rest::get_external_urls>),
      read_row("training_runs/{}/checkpoints/{}/{}/archive", answer<&Rest::get_archive_url>),
      file_row("files/{}/{}", answer<&Rest::download_file>),
      {.method = "PUT", .path = "sessions/{}/project", .run = answer<&Rest::set_project>},
      {.method = "PUT",
       .path = "training_runs/{}/checkpoints/{}/{}/ttl",
       .run = answer<&Rest::set_ttl>},
      {.method = "DELETE",
       .path = "training_runs/{}/checkpoints/{}/{}",
       .run = answer<&Rest::delete_checkpoint>,
       .body = kNone},
      {.method = "DELETE",
       .path = "training_runs/{}/checkpoints/{}",
       .run = refuse_checkpoint_without_kind,
       .body = kNone},
      {.path = "copy_weights", .run = answer<&Rest::copy_weights>},
      {.path = "training_runs/{}/checkpoints/{}/{}/publish",
       .run = answer<&Rest::set_public<true>>,
       .body = kNone},
      {.method = "DELETE",
       .path = "training_runs/{}/checkpoints/{}/{}/publish",
       .run = answer<&Rest::set_public<false>>,
       .body = kNone},
  };
  return kRows;
}

void Rest::add_routes(Router& router) {
  for (const Endpoint<Rest>& endpoint : endpoints())
    add_endpoint(router, "/api/v1/", endpoint, *this);
}

}  // namespace strata::server
