// SPDX-License-Identifier: Apache-2.0
// Models: made fresh or from a checkpoint, described, unloaded.
#include <fmt/format.h>

#include <bit>

#include "base/log.h"
#include "server/crypto.h"
#include "server/json.h"
#include "server/service/service.h"

namespace strata::server {
namespace {

constexpr size_t kMaxBaseName = 255;

void check_optimizer(const Fields& body) {
  if (!body.has("optimizer_config")) return;
  const std::string type = body.object("optimizer_config").string_or("type", "adamw");
  if (type != "adamw") {
    body.fail("optimizer_config", fmt::format("type '{}' is not supported; this server has adamw",
                                              type.substr(0, 100)));
  }
}

Response model_reply(const char* type, const std::string& id) {
  return json_response(200, JsonObject{{"type", type}, {"model_id", id}}.text());
}

// How the page calls a run: `name` of its user_metadata.
std::string name_of_run(const Fields& body) {
  if (!body.has("user_metadata")) return "";
  const Fields metadata = body.object("user_metadata");
  return metadata.is_string("name") ? metadata.string("name") : "";
}

}  // namespace

const BaseName& Service::find_base(const Fields& body, const std::string& name) const {
  if (name.size() > kMaxBaseName) {
    body.fail("base_model",
              fmt::format("has {} bytes, the limit is {}", name.size(), kMaxBaseName));
  }
  const BaseName* base = parts_.names.find(name);
  if (base != nullptr) return *base;
  std::string known;
  for (const BaseName& row : parts_.names.names()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  body.fail("base_model", fmt::format("'{}' is not served here; this server has: {}",
                                      name.substr(0, 200), known));
}

const BaseName& Service::find_trainable(const Fields& body, const std::string& name) const {
  const BaseName& base = find_base(body, name);
  if (base.adapter.empty()) return base;
  body.fail("base_model",
            fmt::format("'{}' is an adapter that this server samples and does not train; train its "
                        "base model '{}'",
                        name.substr(0, 200), parts_.names.base_of(base).name));
}

api::LoraConfig Service::read_lora(const Fields& body) const {
  if (!body.has("lora_config")) {
    body.fail("lora_config", "this server trains LoRA adapters: a rank is required");
  }
  const Fields config = body.object("lora_config");
  api::LoraConfig lora;
  lora.rank = config.integer("rank", INT64_MIN, INT64_MAX);
  if (lora.rank < 1 || lora.rank > options_.max_rank ||
      !std::has_single_bit(static_cast<uint64_t>(lora.rank))) {
    config.fail("rank", fmt::format("got {}, wanted a power of two from 1 to {} (--max-rank)",
                                    lora.rank, options_.max_rank));
  }
  const std::optional<uint64_t> seed = config.maybe_bits("seed");
  lora.seed = seed ? *seed : random_seed();
  lora.train_attn = config.boolean_or("train_attn", true);
  lora.train_mlp = config.boolean_or("train_mlp", true);
  lora.train_unembed = config.boolean_or("train_unembed", true);
  if (!lora.train_attn && !lora.train_mlp && !lora.train_unembed) {
    config.fail("train_attn", "one of train_attn, train_mlp and train_unembed must be true");
  }
  return lora;
}

Response Service::create_model(const Request& request) {
  const JsonBody json(request.body, "create_model");
  const Fields body = json.root();
  const std::string session = body.string("session_id");
  require_session(request, session);
  check_optimizer(body);
  const std::string base_name = body.string("base_model");
  const BaseName& base = find_trainable(body, base_name);
  api::CreateModel create;
  create.lora = read_lora(body);
  return start_model(request, body, session, base, base_name, std::move(create), nullptr,
                     "create_model");
}

// A load of what is not there is the user's fault like any other of its faults: 400.
CheckpointRow Service::find_to_load(const Request& request, const TinkerPath& path) {
  try {
    return parts_.registry.find(path, request.tenant, /*may_be_public=*/true, wall_seconds());
  } catch (const Error& error) {
    if (error.code != ErrorCode::kNotFound) throw;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("load_weights: path: {}", error.what()));
  }
}

// The create form of load_weights.
Response Service::create_from_checkpoint(const Request& request, const Fields& body) {
  refuse_token(body);
  const std::string session = body.string("session_id");
  require_session(request, session);
  check_optimizer(body);
  const TinkerPath path = parse_tinker_path(body.string("path"));
  if (path.kind != CheckpointKind::kWeights) {
    body.fail("path", fmt::format("'{}' is not a training checkpoint (weights)", path.text()));
  }
  const CheckpointRow row = find_to_load(request, path);
  const BaseName* of_row = parts_.names.find(row.base_model);
  const std::string base_name = body.string_or("base_model", row.base_model);
  const BaseName& base = find_trainable(body, base_name);
  if (of_row == nullptr || of_row->model != base.model) {
    body.fail("base_model", fmt::format("'{}' is not the checkpoint's base model '{}'",
                                        base_name.substr(0, 200), row.base_model));
  }
  api::CreateModel create;
  create.lora = row.lora;
  create.load_dir = parts_.registry.folder(row);
  create.load_optimizer = body.boolean_or("optimizer", false);
  return start_model(request, body, session, base, base_name, std::move(create),
                     parts_.registry.lease(row.id), "load_weights");
}

struct Service::ModelMade : Completion {
  ModelMade(Service& of, std::string model, const char* reply_type,
            std::shared_ptr<void> checkpoint)
      : service(of), id(std::move(model)), type(reply_type), lease(std::move(checkpoint)) {}

  Response finish(const api::Outcome&) override { return model_reply(type, id); }
  void undo() override {
    if (!is_alive) return;
    service.drop_model(id);
    service.parts_.store.forget_run(id);
  }

  Service& service;
  const std::string id;
  const char* const type;  // of the reply
  const std::shared_ptr<void> lease;
  bool is_alive = false;  // it has a row, which was made for this command
};

struct Service::ModelUnloaded : Completion {
  explicit ModelUnloaded(std::string model) : id(std::move(model)) {}
  Response finish(const api::Outcome&) override { return model_reply("unload_model", id); }
  const std::string id;
};

Response Service::start_model(const Request& request, const Fields& body,
                              const std::string& session, const BaseName& base,
                              const std::string& base_name, api::CreateModel create,
                              std::shared_ptr<void> lease, const char* type) {
  const int64_t number = body.integer("model_seq_id", 0, INT64_MAX);
  const std::string id = ModelTable::id_of(session, number);
  request.note(id);
  const bool is_new = !models_.contains(id);
  if (is_new && parts_.store.find_run(id)) live_model(request, id);  // throws: unloaded or lost
  api::Command command =
      new_command(request.tenant, session, api::BaseId{base.model}, FutureKind::kTraining);
  command.model = {id};
  command.fingerprint = fingerprint_of(request.body);
  const api::LoraConfig lora = create.lora;
  command.op = std::move(create);
  const std::string tenant = request.tenant;
  RunRow row;
  row.id = id;
  row.tenant = tenant;
  row.session_id = session;
  row.model_seq = number;
  row.created_at = row.last_request_at = wall_seconds();
  row.base_model = base_name;
  row.lora = lora;
  row.user_metadata = read_metadata(body);
  std::string name = name_of_run(body);
  if (const std::optional<SessionRow> of = parts_.store.find_session(session)) {
    row.project_id = of->project_id;
    if (name.empty()) name = of->display_name.value_or("");
  }
  // First what a restart must know, then the model: what the store refuses takes no slot.
  if (is_new) parts_.store.add_run(row);
  const auto made = std::make_shared<ModelMade>(*this, id, type, std::move(lease));
  Response response = submit(tenant, std::move(command), {.completion = made});
  if (is_new && response.status != 200) guarded("undo", [&] { parts_.store.forget_run(id); });
  if (response.status == 409) {  // which a client would repeat for five minutes
    return error_response(
        400, fmt::format("{}: model_seq_id: {} was used for another request", type, number));
  }
  if (response.status != 200 || !is_new) return response;
  models_.add(id, {tenant, session, base_name, api::BaseId{base.model}, lora, false});
  parts_.watch.run_started(id, {.tenant = tenant,
                                .base_name = base_name,
                                .name = std::move(name),
                                .rank = lora.rank,
                                .begin = row.created_at});
  made->is_alive = true;
  return response;
}

LiveModel& Service::live_model(const Request& request, const std::string& id) {
  request.note(id);
  if (LiveModel* model = models_.find(id, request.tenant)) return *model;
  const std::optional<RunRow> row = parts_.store.find_run(id);
  if (!row || row->tenant != request.tenant) {
    throw Error(ErrorCode::kNotFound, fmt::format("no such model: {}", id.substr(0, 200)));
  }
  if (row->state != RunState::kLost) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("model {} is not loaded any more: it was unloaded, its session ended, "
                            "or its creation failed",
                            id));
  }
  const std::optional<CheckpointRow> last =
      parts_.store.last_checkpoint(id, CheckpointKind::kWeights, wall_seconds());
  throw Error(
      ErrorCode::kNotFound,
      fmt::format("model {} was lost when the server restarted at {}; last checkpoint: {}", id,
                  rfc3339(parts_.store.boot_time()), last ? path_of(*last).text() : "none"));
}

void Service::drop_model(const std::string& id) {
  models_.remove(id);
  parts_.watch.run_ended(id);
  remembered_.forget(id);
  // Should it fail, the next start says "lost" of the model, not "unloaded".
  guarded("end_run", [&] { parts_.store.end_run(id, RunState::kUnloaded, wall_seconds()); });
}

Response Service::get_info(const Request& request) {
  const JsonBody json(request.body, "get_info");
  const std::string id = json.root().string("model_id");
  const LiveModel& model = live_model(request, id);
  const BaseName* base = parts_.names.find(model.base_name);
  return json_response(200,
                       JsonObject{{"type", "get_info"},
                                  {"model_id", id},
                                  {"model_data", JsonObject{{"arch", info(model.base).architecture},
                                                            {"model_name", model.base_name},
                                                            {"tokenizer_id", base->tokenizer_id}}},
                                  {"is_lora", true},
                                  {"lora_rank", model.lora.rank},
                                  {"model_name", model.base_name},
                                  {"optimizer_config", JsonObject{{"type", "adamw"}}}}
                           .text());
}

Response Service::unload_model(const Request& request) {
  const JsonBody json(request.body, "unload_model");
  const std::string id = json.root().string("model_id");
  const LiveModel& model = live_model(request, id);
  api::Command command = training_command(request, model, id, /*seq_id=*/0);
  command.fingerprint = fingerprint_of(request.body);
  command.op = api::UnloadModel{};
  Response response = submit(request.tenant, std::move(command),
                             {.completion = std::make_shared<ModelUnloaded>(id)});
  if (response.status == 200) drop_model(id);
  return response;
}

Response Service::weights_info(const Request& request) {
  const JsonBody json(request.body, "weights_info");
  const Fields body = json.root();
  refuse_token(body);
  const TinkerPath path = parse_tinker_path(body.string("tinker_path"));
  const CheckpointRow row =
      parts_.registry.find(path, request.tenant, /*may_be_public=*/true, wall_seconds());
  return json_response(200, JsonObject{{"type", "weights_info"},
                                       {"base_model", row.base_model},
                                       {"is_lora", true},
                                       {"lora_rank", row.lora.rank},
                                       {"train_unembed", row.lora.train_unembed},
                                       {"train_mlp", row.lora.train_mlp},
                                       {"train_attn", row.lora.train_attn},
                                       {"optimizer_config", JsonObject{{"type", "adamw"}}}}
                                .text());
}

}  // namespace strata::server
