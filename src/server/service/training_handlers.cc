// SPDX-License-Identifier: Apache-2.0
// Training operations of a model, in the order of their numbers: steps, saves, loads. A refusal at
// submission uses up its number.
#include <fmt/format.h>

#include <set>

#include "base/log.h"
#include "server/checkpoints/age.h"
#include "server/json.h"
#include "server/protocol/results.h"
#include "server/service/service.h"

namespace strata::server {
namespace {

constexpr size_t kMaxRecipients = 16;  // each costs a key agreement for every file

double read_number(const Fields& fields, const char* name, double otherwise) {
  if (fields.is_null(name)) fields.fail(name, "null is no number");
  return fields.number_or(name, otherwise);
}

double read_at_least_0(const Fields& fields, const char* name, double otherwise) {
  const double value = read_number(fields, name, otherwise);
  if (value < 0) fields.fail(name, fmt::format("got {}, wanted 0 or more", value));
  return value;
}

double read_beta(const Fields& fields, const char* name, double otherwise) {
  const double value = read_number(fields, name, otherwise);
  if (value < 0 || value >= 1) {
    fields.fail(name, fmt::format("got {}, wanted 0 or more and below 1", value));
  }
  return value;
}

api::AdamW read_adam(const Fields& body) {
  if (body.has("optimizer_params")) {
    body.fail("optimizer_params", "is not supported: this server has Adam (adam_params)");
  }
  api::AdamW adam;
  if (!body.has("adam_params")) return adam;
  const Fields params = body.object("adam_params");
  adam.lr = read_at_least_0(params, "learning_rate", adam.lr);
  adam.beta1 = read_beta(params, "beta1", adam.beta1);
  adam.beta2 = read_beta(params, "beta2", adam.beta2);
  adam.eps = read_number(params, "eps", adam.eps);
  if (adam.eps <= 0) params.fail("eps", fmt::format("got {}, wanted more than 0", adam.eps));
  adam.weight_decay = read_at_least_0(params, "weight_decay", adam.weight_decay);
  adam.grad_clip_norm = read_at_least_0(params, "grad_clip_norm", adam.grad_clip_norm);
  return adam;
}

int64_t read_seq_id(const Fields& body) { return body.integer("seq_id", 1, INT64_MAX / 2); }

JsonObject path_reply(const char* type, const TinkerPath& path) {
  return {{"type", type}, {"path", path.text()}};
}

std::vector<std::string> read_recipients(const Fields& body) {
  std::vector<std::string> keys;
  if (!body.has("age_encryption_recipients")) return keys;
  const std::vector<std::string> texts = body.strings("age_encryption_recipients");
  const std::set<std::string> distinct(texts.begin(), texts.end());
  if (distinct.size() > kMaxRecipients) {
    body.fail("age_encryption_recipients",
              fmt::format("has {} recipients, the limit is {}", distinct.size(), kMaxRecipients));
  }
  for (const std::string& text : distinct) keys.push_back(parse_age_recipient(text));
  return keys;
}

}  // namespace

struct Service::Stepped : Completion {
  Response finish(const api::Outcome& outcome) override {
    return optim_response(std::get<api::StepResult>(outcome));
  }
};

Response Service::optim_step(const Request& request) {
  const JsonBody json(request.body, "optim_step");
  const Fields body = json.root();
  const std::string id = body.string("model_id");
  const LiveModel model = live_model(request, id);
  const int64_t seq_id = read_seq_id(body);
  return with_number(id, seq_id, [&] {
    api::Command command = training_command(request, model, id, seq_id);
    command.fingerprint = fingerprint_of(request.body);
    command.op = api::OptimStep{read_adam(body)};
    parts_.store.touch_run(id, wall_seconds());
    return submit(request.tenant, std::move(command), {.completion = std::make_shared<Stepped>()});
  });
}

struct Service::StateLoaded : Completion {
  StateLoaded(TinkerPath of, std::shared_ptr<void> checkpoint)
      : path(std::move(of)), lease(std::move(checkpoint)) {}

  Response finish(const api::Outcome&) override {
    return json_response(200, path_reply("load_weights", path).text());
  }

  const TinkerPath path;
  const std::shared_ptr<void> lease;
};

Response Service::load_weights(const Request& request) {
  const JsonBody json(request.body, "load_weights");
  const Fields body = json.root();
  if (!body.has("model_id")) return create_from_checkpoint(request, body);
  const std::string id = body.string("model_id");
  const LiveModel model = live_model(request, id);
  const int64_t seq_id = read_seq_id(body);
  return with_number(id, seq_id, [&] {
    refuse_token(body);
    const TinkerPath path = parse_tinker_path(body.string("path"));
    const bool optimizer = body.boolean_or("optimizer", false);
    CheckpointRow row;
    try {
      if (path.kind != CheckpointKind::kWeights) {
        body.fail("path", fmt::format("'{}' is not a training checkpoint (weights)", path.text()));
      }
      row = parts_.registry.find(path, request.tenant, /*may_be_public=*/true, wall_seconds());
      const BaseName* base = parts_.names.find(row.base_model);
      if (base == nullptr || api::BaseId{base->model} != model.base) {
        body.fail("path", fmt::format("'{}' is of base model '{}', model {} is of '{}'",
                                      path.text(), row.base_model, id, model.base_name));
      }
      if (row.lora.rank != model.lora.rank || row.lora.train_attn != model.lora.train_attn ||
          row.lora.train_mlp != model.lora.train_mlp ||
          row.lora.train_unembed != model.lora.train_unembed) {
        body.fail("path", fmt::format("'{}' has rank {} or trained modules unlike those of model "
                                      "{} (rank {})",
                                      path.text(), row.lora.rank, id, model.lora.rank));
      }
    } catch (const Error& error) {
      return refuse_later(request.tenant, id, seq_id, fingerprint_of(request.body), error.what());
    }
    api::Command command = training_command(request, model, id, seq_id);
    command.fingerprint = fingerprint_of(request.body);
    command.op = api::LoadState{parts_.registry.folder(row), optimizer};
    return submit(
        request.tenant, std::move(command),
        {.completion = std::make_shared<StateLoaded>(path, parts_.registry.lease(row.id))});
  });
}

Response Service::save(const Request& request, const SaveForm& form) {
  const JsonBody json(request.body, form.name);
  const Fields body = json.root();
  const std::string id = body.string("model_id");
  live_model(request, id);
  const int64_t seq_id = read_seq_id(body);
  return with_number(id, seq_id, [&]() -> Response {
    if (form.kind == CheckpointKind::kSampler) {
      const std::string kind = body.string_or("kind", "snapshot");
      if (kind == "inflight") {
        body.fail("kind", "'inflight' is not supported; this server has 'snapshot'");
      }
      if (kind != "snapshot") body.fail("kind", "wanted 'snapshot'");
      if (body.has("sampling_session_seq_id")) return save_ephemeral(request, body, id, seq_id);
    }
    return submit_save(request, body, form, id, seq_id);
  });
}

// A checkpoint in its folder, whose files are whole when the command ends.
struct Service::CheckpointSaved : Completion {
  CheckpointSaved(CheckpointRegistry& of, const Dispatch& engines)
      : registry(of), dispatch(engines) {}

  Response finish(const api::Outcome&) override {
    release();
    const CheckpointRow row = registry.finish(dir, save, wall_seconds());
    JsonObject reply = path_reply(form.name, save.path);
    if (form.kind == CheckpointKind::kExternal) reply.add("size_bytes", row.size_bytes);
    return json_response(200, reply.text());
  }
  void undo() override {
    release();
    registry.abandon(dir);
  }
  [[nodiscard]] bool writes_files() const override { return true; }

  // Sampling sessions name the checkpoint's own snapshot and read it from its folder.
  void release() const {
    if (form.kind == CheckpointKind::kSampler) dispatch.release(base, snapshot);
  }

  CheckpointRegistry& registry;
  const Dispatch& dispatch;
  SaveForm form = {};
  std::string dir = {};
  CheckpointSave save = {};
  api::BaseId base = {};
  api::SnapshotId snapshot = {};
  std::shared_ptr<void> room = {}, quota = {};  // kept until it is done
};

Response Service::submit_save(const Request& request, const Fields& body, const SaveForm& form,
                              const std::string& id, int64_t seq_id) {
  const LiveModel& model = live_model(request, id);
  const auto saved = std::make_shared<CheckpointSaved>(parts_.registry, dispatch_);
  saved->form = form;
  saved->base = model.base;
  CheckpointSave& save = saved->save;
  const std::string name = body.string_or("path", fmt::format("checkpoint-{:06}", seq_id));
  check_checkpoint_name("path", name);
  save.path = {id, form.kind, name};
  request.note(save.path.text());
  save.tenant = request.tenant;
  save.ttl_seconds = read_ttl(body);
  save.user_metadata = read_metadata(body);
  save.base_model = model.base_name;
  save.lora = model.lora;
  if (form.kind == CheckpointKind::kWeights) save.overwrite = body.boolean_or("overwrite", false);
  if (form.kind == CheckpointKind::kExternal) save.age_recipients = read_recipients(body);
  const int64_t parameters = dispatch_.parameter_bytes(model.base, model.lora);
  const int64_t bytes = form.kind == CheckpointKind::kWeights ? 3 * parameters : parameters;
  if (parts_.usage.has_quota(request.tenant, UsageKind::kDiskBytes)) {
    if (auto full = parts_.usage.refuses_disk(request.tenant,
                                              parts_.store.stored_bytes(request.tenant), bytes))
      return std::move(*full);
    saved->quota = parts_.usage.reserve(request.tenant, UsageKind::kDiskBytes, bytes);
  }
  try {
    saved->room = parts_.registry.reserve(bytes);
  } catch (const Error& error) {
    if (error.code != ErrorCode::kIo) throw;
    return refuse_later(request.tenant, id, seq_id, fingerprint_of(request.body), error.what(),
                        api::FaultCategory::kServer);
  }
  const std::string& dir = saved->dir = parts_.registry.begin();
  api::Command command = training_command(request, model, id, seq_id);
  command.fingerprint = fingerprint_of(request.body);
  saved->snapshot = {command.request.text};
  if (form.kind == CheckpointKind::kWeights) {
    command.op = api::SaveState{dir, model.base_name};
  } else if (form.kind == CheckpointKind::kExternal) {
    command.op =
        api::SaveForSampler{.dir = dir, .base_model_name = model.base_name, .for_export = true};
  } else {
    command.op = api::SaveForSampler{dir, model.base_name, saved->snapshot, /*ephemeral=*/false};
  }
  parts_.store.touch_run(id, wall_seconds());
  return submit(request.tenant, std::move(command), {.completion = saved});
}

// A sampling session whose weights are in memory alone, or in a folder of tmp.
struct Service::EphemeralSaved : Completion {
  EphemeralSaved(Service& of, SamplerRow of_store, LiveSampler of_table)
      : service(of), row(std::move(of_store)), sampler(std::move(of_table)) {}

  Response finish(const api::Outcome&) override {
    if (!service.sessions_.contains(row.session_id)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("session {} has ended: its sampler is not kept", row.session_id));
    }
    row.created_at = wall_seconds();
    service.parts_.store.add_sampler(row);
    service.keep_sampler(row.id, sampler);
    return json_response(
        200,
        JsonObject{{"type", "save_weights_for_sampler"}, {"sampling_session_id", row.id}}.text());
  }
  void undo() override {
    service.dispatch_.release(sampler.base, sampler.snapshot);
    service.parts_.registry.abandon(sampler.dir);
  }

  Service& service;
  SamplerRow row;
  const LiveSampler sampler;
};

Response Service::save_ephemeral(const Request& request, const Fields& body, const std::string& id,
                                 int64_t seq_id) {
  const LiveModel& model = live_model(request, id);
  const int64_t number = body.integer("sampling_session_seq_id", 0, INT64_MAX);
  const std::string sampler_id = SamplerTable::id_of(model.session, number);
  request.note(sampler_id);
  const std::string dir = parts_.registry.begin();
  api::Command command = training_command(request, model, id, seq_id);
  command.fingerprint = fingerprint_of(request.body);
  const api::SnapshotId snapshot = {sampler_id};
  command.op = api::SaveForSampler{dir, model.base_name, snapshot, /*ephemeral=*/true};
  SamplerRow row;
  row.id = sampler_id;
  row.session_id = model.session;
  row.sampling_seq = number;
  row.tenant = request.tenant;
  row.base_model = model.base_name;
  row.is_ephemeral = true;
  LiveSampler sampler = {.tenant = request.tenant,
                         .session = model.session,
                         .base_name = model.base_name,
                         .model_path = {},
                         .base = model.base,
                         .snapshot = snapshot,
                         .dir = dir,
                         .is_ephemeral = true,
                         .lease = {}};
  return submit(
      request.tenant, std::move(command),
      {.completion = std::make_shared<EphemeralSaved>(*this, std::move(row), std::move(sampler))});
}

}  // namespace strata::server
