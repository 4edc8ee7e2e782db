// SPDX-License-Identifier: Apache-2.0
// What becomes alive and what ends, and what is said of a name that is not alive: the store knows
// what there was.
#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "server/tinker/refusals.h"
#include "server/tinker/service/service.h"

namespace strata::server {
namespace {

bool is_public_now(const CheckpointRow& row) {
  return row.is_public && !row.deleted_at && (!row.expires_at || *row.expires_at > wall_seconds());
}

std::string end_text(const std::string& session, const std::string& state,
                     const std::string& detail) {
  return state == "timed_out" ? fmt::format("session {} timed out: {}", session, detail)
                              : fmt::format("session {} was finished by its client", session);
}

}  // namespace

void Service::throw_session_not_alive(const Request& request, const std::string& id) const {
  const std::optional<SessionRow> row = parts_.store.find_session(id);
  if (!row || row->tenant != request.tenant)
    throw Error(ErrorCode::kNotFound, fmt::format("no such session: {}", id.substr(0, 100)));
  std::string why = row->end_detail.value_or("");
  if (why.empty()) why = row->end_reason.value_or(row->state);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("session {} has ended ({}): it takes no more work", id, why));
}

void Service::end_session(const std::string& id, const std::string& state,
                          const std::string& reason, const std::string& detail) {
  parts_.store.end_session(id, state, reason, detail, wall_seconds());
  sessions_.remove(id);
  dispatch_.end_session({id}, end_text(id, state, detail));
  for (const std::string& model : models_.of_session(id)) forget_model(model);  // its run has ended
  samplers_.end_session(id);
  ended_.push_back(id);
  drop_samplers_of_ended_sessions();
  drop_readers_of_gone_checkpoints();
  log(LogLevel::kInfo, fmt::format("session {} ended: {}", id, state));
}

void Service::throw_model_not_alive(const Request& request, const std::string& id) const {
  const std::optional<RunRow> row = parts_.store.find_run(id);
  if (!row || row->tenant != request.tenant)
    throw Error(ErrorCode::kNotFound, fmt::format("no such model: {}", id.substr(0, 200)));
  if (row->state != RunState::kLost) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("model {} is not loaded any more: it was unloaded, its session ended, "
                            "or its creation failed",
                            id));
  }
  const std::optional<CheckpointRow> last =
      parts_.store.find_last_checkpoint(id, CheckpointKind::kWeights, wall_seconds());
  throw Error(
      ErrorCode::kNotFound,
      fmt::format("model {} was lost when the server restarted at {}; last checkpoint: {}", id,
                  rfc3339(parts_.store.boot_time()), last ? path_of(*last).text() : "none"));
}

void Service::forget_model(const std::string& id) {
  models_.remove(id);
  parts_.watch.note_run_ended(id);
  remembered_.forget(id);
}

void Service::retire_model(const std::string& id) {
  forget_model(id);
  // Should it fail, the next start says "lost" of the model, not "unloaded".
  run_guarded("end_run", [&] { parts_.store.end_run(id, RunState::kUnloaded, wall_seconds()); });
}

void Service::throw_ephemeral_not_alive(const SamplerRow& row) const {
  throw Error(ErrorCode::kNotFound,
              row.boot == parts_.store.boot()
                  ? fmt::format("sampling session {} has ended: its session has {} younger ones "
                                "whose weights are not saved (--max-ephemeral)",
                                row.id, options_.max_ephemerals)
                  : fmt::format("sampling session {} was lost when the server restarted at {}",
                                row.id, rfc3339(parts_.store.boot_time())));
}

SamplerTable::Row Service::require_sampler(const Request& request, const std::string& id) {
  request.note(id);
  SamplerTable::Row sampler = samplers_.touch_sampler(id, request.tenant);
  if (!sampler) return restore_sampler(request, id);
  // Keys may have been read again since it was made.
  if (const BaseName* base = parts_.names.find(sampler->base_name))
    check_may_sample(request.tenant, *base);
  return sampler;
}

SamplerTable::Row Service::restore_sampler(const Request& request, const std::string& id) {
  const std::optional<SamplerRow> row = parts_.store.find_sampler(id);
  if (!row || row->tenant != request.tenant) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("no such sampling session: {}", id.substr(0, 200)));
  }
  require_session(request, row->session_id);
  request.note(id);
  if (row->is_ephemeral) throw_ephemeral_not_alive(*row);
  return add_live_sampler(id, make_sampler(*row, request.tenant));
}

const BaseName& Service::require_served_base(const SamplerRow& row) const {
  if (const BaseName* base = parts_.names.find(row.base_model)) return *base;
  throw Error(ErrorCode::kNotFound, fmt::format("sampling session {}: base model '{}' is not "
                                                "served any more",
                                                row.id, row.base_model));
}

bool Service::may_sample(const std::string& tenant, const BaseName& base) const {
  return base.adapter.empty() || !parts_.may_sample || parts_.may_sample(tenant, base.name);
}

// Answers as if the adapter were not there: its name is nobody else's business.
void Service::check_may_sample(const std::string& tenant, const BaseName& base) const {
  if (may_sample(tenant, base)) return;
  throw Error(ErrorCode::kNotFound, fmt::format("no such model: {}", base.name));
}

LiveSampler Service::make_sampler(const SamplerRow& row, const std::string& tenant) {
  LiveSampler sampler;
  sampler.tenant = tenant;
  sampler.session = row.session_id;
  sampler.base_name = row.base_model;
  sampler.model_path = row.model_path;
  const BaseName& base = require_served_base(row);
  check_may_sample(tenant, base);
  sampler.base = api::BaseId{base.model};
  if (!base.adapter.empty()) {
    sampler.snapshot = {base.snapshot_id()};
    sampler.dir = base.adapter;
  }
  if (row.checkpoint_id) attach_checkpoint(row, sampler);
  return sampler;
}

void Service::attach_checkpoint(const SamplerRow& row, LiveSampler& sampler) {
  sampler.lease = parts_.registry.lease(*row.checkpoint_id);
  const std::optional<CheckpointRow> checkpoint =
      parts_.store.find_checkpoint_by_id(*row.checkpoint_id);
  // Another tenant's is read as long as it stands: its owner can take it back, and has its space.
  sampler.reads_anothers = checkpoint && checkpoint->tenant != sampler.tenant;
  const bool is_read = checkpoint && (!sampler.reads_anothers || is_public_now(*checkpoint));
  if (!is_read) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("sampling session {}: its checkpoint is gone", row.id));
  }
  if (sampler.reads_anothers) sampler.lease = nullptr;
  sampler.snapshot = {*row.checkpoint_id};
  sampler.dir = parts_.registry.folder(*checkpoint);
}

SamplerTable::Row Service::add_live_sampler(const std::string& id, LiveSampler sampler,
                                            SharedLimit::Share bytes) {
  SamplerTable::Added added = samplers_.add(id, std::move(sampler), std::move(bytes));
  // What an ephemeral one replaces may have made way before.
  if (added.replaced || added.row->is_ephemeral) remembered_.forget(id);
  if (added.replaced && added.replaced->is_ephemeral) remove_files(*added.replaced);
  if (added.crowded_out) {
    remembered_.forget(*added.crowded_out);
    release_ephemeral(*added.evicted_row);
  }
  return std::move(added.row);
}

std::optional<Response> Service::refuse_over_sampler_limit(const std::string& tenant) const {
  const int64_t count = parts_.store.num_samplers(tenant);
  if (count < options_.max_tenant_samplers) return std::nullopt;
  return refuse(kTooManySamplers, {count});
}

void Service::release_ephemeral(const LiveSampler& sampler) {
  if (!sampler.is_ephemeral) return;
  dispatch_.release(sampler.base, sampler.snapshot);
  remove_files(sampler);
}

void Service::remove_files(const LiveSampler& sampler) {
  run_file_job(sampler.tenant, [this, dir = sampler.dir] { parts_.registry.abandon(dir); });
}

// And then the numbers of those that had made way.
void Service::purge_session(const std::string& session) {
  for (const std::string& id : samplers_.of_session(session, drops_left_)) {
    if (drops_left_ <= 0) return;
    drops_left_ -= 1 + remembered_.forget(id);
    release_ephemeral(*samplers_.take(id));
  }
  while (drops_left_ > 0) {
    const int64_t count = remembered_.forget_first_below(SamplerTable::id_of(session));
    if (count == 0) break;
    drops_left_ -= count;
  }
}

void Service::drop_samplers_of_ended_sessions() {
  while (!ended_.empty() && drops_left_ > 0) {
    purge_session(ended_.front());
    if (drops_left_ > 0) ended_.pop_front();
  }
}

void Service::drop_readers_of_gone_checkpoints() {
  while (!gone_.empty() && drops_left_ > 0) {
    const int64_t count = samplers_.drop_readers(gone_.front(), drops_left_);
    drops_left_ -= count + 1;
    if (count == 0) gone_.pop_front();
  }
}

CheckpointRow Service::require_sampled_checkpoint(const std::string& tenant,
                                                  const std::string& path_text) const {
  const TinkerPath path = parse_tinker_path(path_text);
  if (path.kind == CheckpointKind::kExternal) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is an export; sampling wants sampler_weights", path.text()));
  }
  return parts_.registry.require_checkpoint(path, tenant, /*may_be_public=*/true, wall_seconds());
}

LiveSampler Service::make_sampler_by_name(const std::string& tenant, const std::string& name) {
  SamplerRow row;
  row.id = name;
  row.base_model = name;
  if (name.starts_with("tinker://")) {
    const CheckpointRow checkpoint = require_sampled_checkpoint(tenant, name);
    row.checkpoint_id = checkpoint.id;
    row.base_model = checkpoint.base_model;
    row.model_path = name;
  } else if (parts_.names.find(name) == nullptr) {
    throw Error(ErrorCode::kNotFound, fmt::format("no such model: {}", name.substr(0, 200)));
  }
  return make_sampler(row, tenant);
}

}  // namespace strata::server
