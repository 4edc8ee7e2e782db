// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/operations/save_checkpoint.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "server/http/message.h"
#include "server/tinker/protocol/common_fields.h"
#include "server/tinker/service/refusals.h"

namespace strata::server {
namespace {

// A checkpoint in its folder, which is there when its files are written: what is queued has none.
struct CheckpointSaved : Completion {
  CheckpointSaved(CheckpointRegistry& of, const Dispatch& engines, const char* reply_type)
      : registry(of), dispatch(engines), type(reply_type) {}

  Response finish(const api::Outcome&) override {
    release();
    const CheckpointRow row = registry.finish_save(dir, save, wall_seconds());
    JsonObject reply = {{"type", type}, {"path", save.path.text()}};
    if (save.path.kind == CheckpointKind::kExternal) reply.add("size_bytes", row.size_bytes);
    return json_response(200, reply.text());
  }
  void make_folder() override {
    server::make_folder(dir);
    is_made = true;
  }
  void undo() override {
    release();
    if (is_made) registry.abandon(dir);
  }
  [[nodiscard]] bool writes_files() const override { return true; }

  // Sampling sessions name the checkpoint's own snapshot and read it from its folder.
  void release() const {
    if (save.path.kind == CheckpointKind::kSampler) dispatch.release(base, snapshot);
  }

  CheckpointRegistry& registry;
  const Dispatch& dispatch;
  const char* const type;  // of the reply
  std::string dir = {};
  bool is_made = false;
  CheckpointSave save = {};
  api::BaseId base = {};
  api::SnapshotId snapshot = {};
  std::shared_ptr<void> disk = {}, quota = {};  // its shares, kept until it is done
};

// As its kind has it, in `dir`.
api::Operation make_save_operation(CheckpointKind kind, const std::string& dir,
                                   const std::string& base_name, const api::SnapshotId& snapshot) {
  switch (kind) {
    case CheckpointKind::kWeights:
      return api::SaveState{dir, base_name};
    case CheckpointKind::kSampler:
      return api::SaveForSampler{dir, base_name, snapshot, /*ephemeral=*/false};
    case CheckpointKind::kExternal:
      break;
  }
  return api::SaveForSampler{.dir = dir, .base_model_name = base_name, .for_export = true};
}

// What all kinds of bodies say of it, and whose it is. The audit log names its path.
void read_save(const NumberedCall& call, CheckpointKind kind, CheckpointSave& save) {
  const std::string name =
      call.body.string_or("path", fmt::format("checkpoint-{:06}", call.seq_id));
  check_checkpoint_name("path", name);
  save.path = {call.model_id, kind, name};
  call.request.note(save.path.text());
  save.tenant = call.request.tenant;
  save.ttl_seconds = read_ttl(call.body);
  save.user_metadata = read_metadata(call.body);
  save.base_model = call.model.base_name;
  save.lora = call.model.lora;
}

// The disk's; or the answer, in the order of the model's numbers, where it has no space.
std::optional<Response> reserve_disk(Service& service, const NumberedCall& call, int64_t bytes,
                                     std::shared_ptr<void>& disk) {
  try {
    disk = service.parts().registry.reserve_disk_space(bytes);
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code != ErrorCode::kIo || dynamic_cast<const StoreError*>(&error) != nullptr) throw;
    return reject_seq_id(service, call, error.what(), api::FaultCategory::kServer);
  }
}

// A training checkpoint has the optimizer's two moments of each parameter too.
int64_t checkpoint_bytes(const Dispatch& dispatch, const LiveModel& model, CheckpointKind kind) {
  const int64_t parameters = dispatch.parameter_bytes(model.base, model.lora);
  return kind == CheckpointKind::kWeights ? 3 * parameters : parameters;
}

}  // namespace

Response save_checkpoint(Service& service, const NumberedCall& call, const char* type,
                         CheckpointKind kind, CheckpointSave save) {
  const ServiceParts& parts = service.parts();
  const LiveModel& model = call.model;
  const std::string& tenant = call.request.tenant;
  read_save(call, kind, save);
  const auto saved = std::make_shared<CheckpointSaved>(parts.registry, service.dispatch(), type);
  saved->save = std::move(save);
  saved->base = model.base;
  const int64_t bytes = checkpoint_bytes(service.dispatch(), model, kind);
  if (auto full = reserve_disk_quota(parts.usage, parts.store, tenant, bytes, saved->quota))
    return std::move(*full);
  if (auto failed = reserve_disk(service, call, bytes, saved->disk)) return std::move(*failed);
  saved->dir = parts.registry.name_folder();
  api::Command command = new_training_command(service, call);
  saved->snapshot = {command.request.text};
  command.op = make_save_operation(kind, saved->dir, model.base_name, saved->snapshot);
  parts.store.touch_run(call.model_id, wall_seconds());
  return service.submit(std::move(command), {.completion = saved});
}

}  // namespace strata::server
