// SPDX-License-Identifier: Apache-2.0
#include "server/rest/rest.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "server/crypto.h"
#include "server/json.h"
#include "server/protocol/forward_backward.h"
#include "server/protocol/json_body.h"

namespace strata::server {
namespace {

constexpr int64_t kMaxPage = 1000;
constexpr int64_t kMaxTtl = 315'360'000;  // ten years

int64_t whole_parameter(const Request& request, const char* name, int64_t otherwise, int64_t max) {
  const auto text = request.parameter(name);
  if (!text) return otherwise;
  int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || rest != end || value < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: got '{}', want a whole number from 0", name, text->substr(0, 40)));
  }
  return std::min(value, max);
}

Page page_of(const Request& request, int64_t limit) {
  return {whole_parameter(request, "limit", limit, kMaxPage),
          whole_parameter(request, "offset", 0, INT64_MAX)};
}

// "accessible" is the same as "owned": what is public is read by its path and never listed.
void check_scope(const Request& request) {
  const std::string scope = request.parameter("access_scope").value_or("owned");
  if (scope == "owned" || scope == "accessible") return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("access_scope: got '{}', want owned or accessible", scope.substr(0, 40)));
}

void check_project(std::string_view name, const std::string& project) {
  const bool fits = !project.empty() && project.size() <= 64 &&
                    project.find_first_not_of(
                        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                        "0123456789._-") == std::string::npos;
  if (fits) return;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: want [A-Za-z0-9._-]{{1,64}}", name));
}

bool shows_external(const Request& request) {
  return request.sdk_version() >= sdk_version_number(0, 28, 0);
}

Json cursor_json(Page page, int64_t total) {
  return JsonObject{{"offset", page.offset}, {"limit", page.limit}, {"total_count", total}};
}

template <typename Row, typename ToJson>
JsonArray json_array(const std::vector<Row>& rows, ToJson to_json) {
  JsonArray out;
  for (const Row& row : rows) out.add(to_json(row));
  return out;
}

std::optional<int64_t> read_ttl_seconds(const Fields& body) {
  if (!body.has("ttl_seconds")) return std::nullopt;
  return body.integer("ttl_seconds", 1, kMaxTtl);
}

[[noreturn]] void fail_missing(const char* what, const std::string& id) {
  throw Error(ErrorCode::kNotFound, fmt::format("{} '{}' does not exist", what, id.substr(0, 100)));
}

Response ok() { return json_response(200, "{}"); }

}  // namespace

JsonObject checkpoint_json(const CheckpointRow& row) {
  const char* type = row.kind == CheckpointKind::kWeights   ? "training"
                     : row.kind == CheckpointKind::kSampler ? "sampler"
                                                            : "external";
  const TinkerPath path = path_of(row);
  JsonObject out = {{"checkpoint_id", path.checkpoint_id()}, {"checkpoint_type", type},
                    {"time", rfc3339(row.created_at)},       {"tinker_path", path.text()},
                    {"size_bytes", row.size_bytes},          {"public", row.is_public}};
  if (row.expires_at) out.add("expires_at", rfc3339(*row.expires_at));
  if (row.user_metadata) out.add("user_metadata", Json::written(*row.user_metadata));
  return out;
}

JsonObject Rest::run_json(const RunRow& row) {
  const double now = wall_seconds();
  JsonObject out = {{"training_run_id", row.id},
                    {"base_model", row.base_model},
                    {"model_owner", row.tenant},
                    {"is_lora", true},
                    {"corrupted", false},
                    {"lora_rank", row.lora.rank},
                    {"last_request_time", rfc3339(row.last_request_at)}};
  const auto last = [&](const char* name, CheckpointKind kind) {
    const auto found = parts_.store.last_checkpoint(row.id, kind, now);
    if (found) out.add(name, checkpoint_json(*found));
  };
  last("last_checkpoint", CheckpointKind::kWeights);
  last("last_sampler_checkpoint", CheckpointKind::kSampler);
  if (row.user_metadata) out.add("user_metadata", Json::written(*row.user_metadata));
  return out;
}

RunRow Rest::own_run(const Request& request, const std::string& id) {
  const auto row = parts_.store.find_run(id);
  if (!row || row->tenant != request.tenant) fail_missing("training run", id);
  return *row;
}

CheckpointRow Rest::checkpoint_of(const Request& request, bool may_be_public) {
  const auto kind = parse_kind(request.parts.at(1));
  if (!kind) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("checkpoint: got '{}/...', want weights/, sampler_weights/ or "
                            "external_weights/ and a name",
                            request.parts.at(1).substr(0, 40)));
  }
  return parts_.registry.find({request.parts.at(0), *kind, request.parts.at(2)}, request.tenant,
                              may_be_public, wall_seconds());
}

Response Rest::list_runs(const Request& request) {
  check_scope(request);
  const Page page = page_of(request, 20);
  const std::string project = request.parameter("project_id").value_or("");
  if (!project.empty()) check_project("project_id", project);
  const auto rows = parts_.store.list_runs(request.tenant, project, page);
  const JsonArray runs = json_array(rows, [&](const RunRow& row) { return run_json(row); });
  const int64_t total = parts_.store.count_runs(request.tenant, project);
  return json_response(
      200, JsonObject{{"training_runs", runs}, {"cursor", cursor_json(page, total)}}.text());
}

Response Rest::get_run(const Request& request) {
  check_scope(request);
  return json_response(200, run_json(own_run(request, request.parts.at(0))).text());
}

Response Rest::run_checkpoints(const Request& request) {
  const RunRow run = own_run(request, request.parts.at(0));
  std::vector<CheckpointRow> rows = parts_.store.checkpoints_of(run.id, wall_seconds());
  if (!shows_external(request)) {
    std::erase_if(rows,
                  [](const CheckpointRow& row) { return row.kind == CheckpointKind::kExternal; });
  }
  const auto total = static_cast<int64_t>(rows.size());
  return json_response(200, JsonObject{{"checkpoints", json_array(rows, checkpoint_json)},
                                       {"cursor", cursor_json({.limit = total}, total)}}
                                .text());
}

Response Rest::list_checkpoints(const Request& request) {
  const Page page = page_of(request, 100);
  const bool external = shows_external(request);
  const double now = wall_seconds();
  const auto rows = parts_.store.list_checkpoints(request.tenant, external, now, page);
  const int64_t total = parts_.store.count_checkpoints(request.tenant, external, now);
  return json_response(200, JsonObject{{"checkpoints", json_array(rows, checkpoint_json)},
                                       {"cursor", cursor_json(page, total)}}
                                .text());
}

Response Rest::list_sessions(const Request& request) {
  check_scope(request);
  const auto rows = parts_.store.list_sessions(request.tenant, page_of(request, 20));
  const JsonArray ids = json_array(rows, [](const SessionRow& row) { return row.id; });
  return json_response(200, JsonObject{{"sessions", ids}}.text());
}

Response Rest::get_session(const Request& request) {
  check_scope(request);
  const std::string& id = request.parts.at(0);
  const auto row = parts_.store.find_session(id);
  if (!row || row->tenant != request.tenant) fail_missing("session", id);
  JsonObject out = {
      {"training_run_ids", JsonArray(parts_.store.runs_of(id))},
      {"sampler_ids", json_array(parts_.store.samplers_of(id),
                                 [](const SamplerRow& sampler) { return sampler.id; })}};
  if (row->user_metadata) out.add("user_metadata", Json::written(*row->user_metadata));
  if (row->display_name) out.add("display_name", *row->display_name);
  return json_response(200, out.text());
}

Response Rest::set_project(const Request& request) {
  const std::string& id = request.parts.at(0);
  const JsonBody json(request.body, "project");
  const std::string project = json.root().string("project_id");
  check_project("project_id", project);
  const auto row = parts_.store.find_session(id);
  if (!row || row->tenant != request.tenant) fail_missing("session", id);
  parts_.store.set_project(id, project);
  return ok();
}

// On the worker: what waits for a disk. Faults are answered as the router answers those of
// handlers.
void Rest::answer_aside(const Request& request, const Respond& respond,
                        std::function<Response()> work) {
  const bool is_taken = parts_.worker.try_post(
      request.tenant, [respond, work = std::move(work)] { respond(answer_of(work)); });
  if (is_taken) return;
  respond(busy_response(429,
                        "too many changes of this tenant's checkpoints wait for the disk; send "
                        "this again when some have been answered"));
}

void Rest::remove(const Request& request, const Respond& respond) {
  answer_aside(request, respond, [this, row = checkpoint_of(request, false)] {
    if (!parts_.store.delete_checkpoint(row.id, wall_seconds())) {
      fail_missing("checkpoint", path_of(row).text());
    }
    return ok();
  });
}

void Rest::set_ttl(const Request& request, const Respond& respond) {
  const JsonBody json(request.body, "ttl");
  const Fields body = json.root();
  if (!body.has("ttl_seconds") && !body.is_null("ttl_seconds")) {
    body.fail("ttl_seconds", "want seconds, or null for no end");
  }
  const auto ttl = read_ttl_seconds(body);
  const CheckpointRow row = checkpoint_of(request, false);
  std::optional<double> expires_at;
  if (ttl) expires_at = wall_seconds() + static_cast<double>(*ttl);
  answer_aside(request, respond, [this, id = row.id, expires_at] {
    parts_.store.set_expiry(id, expires_at);
    return ok();
  });
}

void Rest::publish(const Request& request, const Respond& respond, bool is_public) {
  // Twice is fine: a 409 would be retried for five minutes.
  answer_aside(request, respond, [this, id = checkpoint_of(request, false).id, is_public] {
    parts_.store.set_public(id, is_public);
    return ok();
  });
}

void Rest::copy_weights(const Request& request, const Respond& respond) {
  const JsonBody json(request.body, "copy_weights");
  const Fields body = json.root();
  if (body.has("weights_access_token") ||
      !request.header("x-tinker-weights-access-token").empty()) {
    body.fail("weights_access_token", "is not supported by this server");
  }
  const TinkerPath path = parse_tinker_path(body.string("source_path"));
  request.note(path.text());
  const auto ttl = read_ttl_seconds(body);
  const double now = wall_seconds();
  RunRow run;
  run.tenant = request.tenant;
  run.created_at = run.last_request_at = now;
  if (body.has("session_id")) {
    run.session_id = body.string("session_id");
    run.model_seq = body.integer("model_seq_id", 0, INT64_MAX);
    const auto session = parts_.store.find_session(*run.session_id);
    if (!session || session->tenant != request.tenant) fail_missing("session", *run.session_id);
    run.project_id = session->project_id;
    run.id = fmt::format("{}:train:{}", *run.session_id, *run.model_seq);
  } else {
    run.project_id = body.string_or("destination_project_id", "default");
    check_project("destination_project_id", run.project_id);
    run.id = fmt::format("copy-{}:train:0", random_id());
  }
  const auto reply = [](const std::string& copied) {
    return json_response(200, JsonObject{{"tinker_path", copied}}.text());
  };
  const Idempotency key{std::string(request.header("x-idempotency-key").substr(0, 256)),
                        static_cast<int64_t>(fingerprint_of(request.body))};
  if (!key.name.empty()) {
    // Before anything else: the source may be gone by the time of a retry.
    const auto known = parts_.store.recall(request.tenant, "copy", key);
    if (known) return respond(reply(*known));
  }
  if (parts_.store.find_run(run.id)) {
    body.fail("model_seq_id", "this number of the session is in use");
  }
  const CheckpointRow source = parts_.registry.find(path, request.tenant, true, now);
  std::shared_ptr<void> quota;
  if (parts_.usage.has_quota(request.tenant, UsageKind::kDiskBytes)) {
    auto full = parts_.usage.refuses_disk(request.tenant, parts_.store.stored_bytes(request.tenant),
                                          source.size_bytes);
    if (full) return respond(std::move(*full));
    quota = parts_.usage.reserve(request.tenant, UsageKind::kDiskBytes, source.size_bytes);
  }
  run.base_model = source.base_model;
  run.lora = source.lora;
  answer_aside(
      request, respond,
      [this, source, run, ttl, key, now, reply, quota, held = parts_.registry.lease(source.id)] {
        return reply(parts_.registry.copy(source, run, ttl, key, now));
      });
}

void Rest::add_routes(Router& router) {
  const std::string checkpoint = "training_runs/{}/checkpoints/{}/{}";
  const auto get = [&](const std::string& path, Handler handler) {
    router.add({.method = "GET",
                .pattern = "/api/v1/" + path,
                .handler = std::move(handler),
                .scope = Scope::kRead,
                .effect = Effect::kReads});
  };
  get("training_runs", at_once([this](const Request& r) { return list_runs(r); }));
  get("training_runs/{}", at_once([this](const Request& r) { return get_run(r); }));
  get("training_runs/{}/checkpoints",
      at_once([this](const Request& r) { return run_checkpoints(r); }));
  get("checkpoints", at_once([this](const Request& r) { return list_checkpoints(r); }));
  get("sessions", at_once([this](const Request& r) { return list_sessions(r); }));
  get("sessions/{}", at_once([this](const Request& r) { return get_session(r); }));
  get(checkpoint + "/external_weights_urls",
      at_once([this](const Request& r) { return external_urls(r); }));
  get(checkpoint + "/archive",
      [this](const Request& r, const Respond& respond) { archive(r, respond); });
  router.add({.method = "GET",
              .pattern = "/api/v1/files/{}/{}",
              .handler = at_once([this](const Request& r) { return file(r); }),
              .needs_key = false,
              .scope = Scope::kRead,
              .effect = Effect::kReads});
  const auto change = [&](const char* method, const std::string& path, BodyKind body,
                          Handler handler) {
    router.add({method, "/api/v1/" + path, body, std::move(handler)});
  };
  change("PUT", "sessions/{}/project", BodyKind::kJson,
         at_once([this](const Request& r) { return set_project(r); }));
  change("PUT", checkpoint + "/ttl", BodyKind::kJson,
         [this](const Request& r, const Respond& respond) { set_ttl(r, respond); });
  change("DELETE", checkpoint, BodyKind::kNone,
         [this](const Request& r, const Respond& respond) { remove(r, respond); });
  change("POST", "copy_weights", BodyKind::kJson,
         [this](const Request& r, const Respond& respond) { copy_weights(r, respond); });
  change("POST", checkpoint + "/publish", BodyKind::kNone,
         [this](const Request& r, const Respond& respond) { publish(r, respond, true); });
  change("DELETE", checkpoint + "/publish", BodyKind::kNone,
         [this](const Request& r, const Respond& respond) { publish(r, respond, false); });
  change("DELETE", "training_runs/{}/checkpoints/{}", BodyKind::kNone,
         at_once([](const Request& r) {
           return error_response(400, fmt::format("checkpoint '{}': want weights/, "
                                                  "sampler_weights/ or external_weights/ "
                                                  "before the name",
                                                  r.parts.at(1).substr(0, 100)));
         }));
}

}  // namespace strata::server
