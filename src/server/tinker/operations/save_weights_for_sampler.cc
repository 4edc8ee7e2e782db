// SPDX-License-Identifier: Apache-2.0
// POST save_weights_for_sampler: weights to sample from: a checkpoint (save_checkpoint.h), or with
// {sampling_session_seq_id} a sampling session of that number whose weights are not saved.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/clock.h"
#include "server/http/message.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/operations/save_checkpoint.h"
#include "server/tinker/refusals.h"
#include "server/tinker/service/refusals.h"

namespace strata::server {
namespace {

// A sampling session whose weights are in memory alone, or in a folder of tmp.
struct EphemeralSaved : Completion {
  EphemeralSaved(Service& of, SamplerRow of_store, LiveSampler of_table, SharedLimit::Share taken)
      : service(of),
        row(std::move(of_store)),
        sampler(std::move(of_table)),
        bytes(std::move(taken)) {}

  Response finish(const api::Outcome&) override {
    is_saved = true;
    require_live_session();
    row.created_at = wall_seconds();
    const SamplerRow kept = service.parts().store.ensure_sampler(row);
    if (!kept.is_ephemeral) refuse_used_number();
    service.add_live_sampler(row.id, sampler, std::move(bytes));
    return json_response(
        200,
        JsonObject{{"type", "save_weights_for_sampler"}, {"sampling_session_id", row.id}}.text());
  }
  void require_live_session() const {
    if (service.sessions().contains(row.session_id)) return;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("session {} has ended: its sampler is not kept", row.session_id));
  }

  [[noreturn]] void refuse_used_number() const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("sampling_session_seq_id: {} of session {} is in use", row.sampling_seq,
                            row.session_id));
  }

  // Until it is saved, its snapshot is another's of that name (sent again, it is refused), and no
  // folder of its own is there.
  void undo() override {
    if (is_saved) service.release_ephemeral(sampler);
  }

  Service& service;
  SamplerRow row;
  const LiveSampler sampler;
  SharedLimit::Share bytes;  // of its row; empty: another leaves it some
  bool is_saved = false;
};

SamplerRow make_ephemeral_row(const NumberedCall& call, int64_t number) {
  SamplerRow row;
  row.id = SamplerTable::id_of(call.model.session, number);
  row.session_id = call.model.session;
  row.sampling_seq = number;
  row.tenant = call.request.tenant;
  row.base_model = call.model.base_name;
  row.is_ephemeral = true;
  return row;
}

LiveSampler make_ephemeral_sampler(const SamplerRow& row, const LiveModel& model, std::string dir) {
  return {.tenant = row.tenant,
          .session = model.session,
          .base_name = model.base_name,
          .model_path = {},
          .base = model.base,
          .snapshot = {row.id},
          .dir = std::move(dir),
          .is_ephemeral = true,
          .lease = {}};
}

// Takes the bytes of the sampler's row, or returns the refusal.
std::optional<Response> reserve_row_bytes(Service& service, const SamplerRow& row,
                                          const LiveSampler& sampler, SharedLimit::Share& bytes) {
  if (auto refused = service.refuse_over_sampler_limit(row.tenant)) return refused;
  bytes = service.samplers().take_bytes_dropping_idle(row.id, sampler);
  if (bytes || service.samplers().would_evict(row.id, sampler.session)) return std::nullopt;
  return refuse(kNoSpaceForSampler);
}

Response save_ephemeral(Service& service, const NumberedCall& call) {
  const LiveModel& model = call.model;
  const int64_t number = call.body.integer("sampling_session_seq_id", 0, INT64_MAX);
  SamplerRow row = make_ephemeral_row(call, number);
  call.request.note(row.id);
  LiveSampler sampler = make_ephemeral_sampler(row, model, service.parts().registry.name_folder());
  api::Command command = new_training_command(service, call);
  SharedLimit::Share bytes;
  if (auto refused = reserve_row_bytes(service, row, sampler, bytes)) {
    std::optional<Response> known =
        service.find_known_answer({call.model_id, call.seq_id}, command.fingerprint);
    return known ? std::move(*known) : std::move(*refused);
  }
  command.op = api::SaveForSampler{sampler.dir, model.base_name, sampler.snapshot,
                                   /*ephemeral=*/true};
  return service.submit(std::move(command),
                        {.completion = std::make_shared<EphemeralSaved>(
                             service, std::move(row), std::move(sampler), std::move(bytes))});
}

void check_snapshot_kind(const text::Fields& body) {
  const std::string kind = body.string_or("kind", "snapshot");
  if (kind == "inflight") {
    body.fail("kind", "'inflight' is not supported; this server has 'snapshot'");
  }
  if (kind != "snapshot") body.fail("kind", "wanted 'snapshot'");
}

Response save_weights_for_sampler(Service& service, const Request& request) {
  constexpr const char* kName = "save_weights_for_sampler";
  const text::JsonBody json(request.body, kName);
  return handle_numbered_call(service, request, json.root(), [&](const NumberedCall& call) {
    check_snapshot_kind(call.body);
    if (call.body.has("sampling_session_seq_id")) return save_ephemeral(service, call);
    return save_checkpoint(service, call, kName, CheckpointKind::kSampler);
  });
}

}  // namespace

constinit const Operation kSaveWeightsForSampler = {.path = "save_weights_for_sampler",
                                                    .run = save_weights_for_sampler};

}  // namespace strata::server
