// SPDX-License-Identifier: Apache-2.0
// Sampling sessions and samples.
#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "server/crypto.h"
#include "server/json.h"
#include "server/protocol/results.h"
#include "server/protocol/sample_request.h"
#include "server/protocol/stability_record.h"
#include "server/service/service.h"

namespace strata::server {
namespace {

Response sampler_reply(const std::string& id) {
  return json_response(
      200, JsonObject{{"type", "create_sampling_session"}, {"sampling_session_id", id}}.text());
}

// Tables over a prompt are made when its sample begins, and kept until they are fetched.
int64_t prompt_table_bytes(const api::Sample& sample) {
  const int64_t values =
      (sample.prompt_logprobs ? 1 : 0) + 2 * (sample.topk_prompt_logprobs + sample.prompt_draws);
  return (std::ssize(sample.prompt) * values + std::ssize(sample.prompt_targets.ids)) * 4;
}

std::string sequence_id(const std::string& sampler, int64_t seq_id, int64_t i) {
  return fmt::format("{}:{}:{}", sampler, seq_id, i);
}

Response sample_reply(const std::string& request, const std::string& sampler, int64_t seq_id,
                      int64_t num_samples) {
  JsonArray ids;
  for (int64_t i = 0; i < num_samples; ++i) ids.add(sequence_id(sampler, seq_id, i));
  return json_response(200,
                       JsonObject{{"request_id", request}, {"sample_sequence_ids", ids}}.text());
}

}  // namespace

Response Service::create_sampling_session(const Request& request) {
  const JsonBody json(request.body, "create_sampling_session");
  const Fields body = json.root();
  refuse_token(body);
  const std::string session = body.string("session_id");
  require_session(request, session);
  const int64_t number = body.integer("sampling_session_seq_id", 0, INT64_MAX);
  SamplerRow row;
  row.id = SamplerTable::id_of(session, number);
  request.note(row.id);
  if (samplers_.contains(row.id)) return sampler_reply(row.id);
  const int64_t in_use = samplers_.count_of(session);
  if (in_use >= options_.max_samplers) {
    return error_response(
        400, fmt::format("create_sampling_session: session {} has {} sampling sessions "
                         "(--max-samplers-per-session); use those again, or a new session",
                         session, in_use));
  }
  row.session_id = session;
  row.sampling_seq = number;
  row.tenant = request.tenant;
  row.created_at = wall_seconds();
  row.model_path = body.maybe_string("model_path");
  if (row.model_path) {
    const TinkerPath path = parse_tinker_path(*row.model_path);
    if (path.kind == CheckpointKind::kExternal) {
      body.fail("model_path",
                fmt::format("'{}' is an export; sampling wants sampler_weights", path.text()));
    }
    const CheckpointRow checkpoint =
        parts_.registry.find(path, request.tenant, /*may_be_public=*/true, row.created_at);
    row.checkpoint_id = checkpoint.id;
    row.base_model = checkpoint.base_model;
    const BaseName& of_path = find_base(body, checkpoint.base_model);
    if (body.has("base_model") &&
        find_trainable(body, body.string("base_model")).model != of_path.model) {
      body.fail("base_model",
                fmt::format("'{}' is of base model '{}'", path.text(), checkpoint.base_model));
    }
  } else {
    row.base_model = body.string("base_model");
    find_base(body, row.base_model);
  }
  const SamplerRow kept = parts_.store.add_sampler(row);
  keep_sampler(kept.id, make_sampler(kept, request.tenant));
  return sampler_reply(kept.id);
}

void Service::keep_sampler(const std::string& id, LiveSampler sampler) {
  const SamplerTable::Added added = samplers_.add(id, std::move(sampler));
  if (!added.is_new) remembered_.forget(id);
  if (added.one_too_many) drop_sampler(*added.one_too_many);
}

void Service::drop_sampler(const std::string& id) {
  const LiveSampler sampler = samplers_.take(id);
  remembered_.forget(id);
  if (!sampler.is_ephemeral) return;
  dispatch_.release(sampler.base, sampler.snapshot);
  const auto job = [this, dir = sampler.dir] { parts_.registry.abandon(dir); };
  parts_.aside ? parts_.aside(sampler.tenant, job) : job();
}

LiveSampler Service::make_sampler(const SamplerRow& row, const std::string& tenant) {
  LiveSampler sampler;
  sampler.tenant = tenant;
  sampler.session = row.session_id;
  sampler.base_name = row.base_model;
  sampler.model_path = row.model_path;
  const BaseName* base = parts_.names.find(row.base_model);
  if (base == nullptr) {
    throw Error(ErrorCode::kNotFound, fmt::format("sampling session {}: base model '{}' is not "
                                                  "served any more",
                                                  row.id, row.base_model));
  }
  sampler.base = api::BaseId{base->model};
  if (!base->adapter.empty()) {
    sampler.snapshot = {base->snapshot_id()};
    sampler.dir = base->adapter;
  }
  if (!row.checkpoint_id) return sampler;
  sampler.lease = parts_.registry.lease(*row.checkpoint_id);
  const std::optional<CheckpointRow> checkpoint =
      parts_.store.find_checkpoint_id(*row.checkpoint_id);
  if (!checkpoint) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("sampling session {}: its checkpoint is gone", row.id));
  }
  sampler.snapshot = {*row.checkpoint_id};
  sampler.dir = parts_.registry.folder(*checkpoint);
  return sampler;
}

const LiveSampler& Service::live_sampler(const Request& request, const std::string& id) {
  request.note(id);
  if (const LiveSampler* sampler = samplers_.find(id, request.tenant)) return *sampler;
  const std::optional<SamplerRow> row = parts_.store.find_sampler(id);
  if (!row || row->tenant != request.tenant) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("no such sampling session: {}", id.substr(0, 200)));
  }
  require_session(request, row->session_id);
  request.note(id);
  if (row->is_ephemeral) {
    throw Error(ErrorCode::kNotFound,
                row->boot == parts_.store.boot()
                    ? fmt::format("sampling session {} has ended: its session has {} younger ones "
                                  "whose weights are not saved (--max-ephemeral)",
                                  id, options_.max_ephemerals)
                    : fmt::format("sampling session {} was lost when the server restarted at {}",
                                  id, rfc3339(parts_.store.boot_time())));
  }
  keep_sampler(id, make_sampler(*row, request.tenant));
  return *samplers_.find(id, request.tenant);
}

Response Service::get_sampler(const Request& request) {
  const std::string& id = request.parts.at(0);
  const LiveSampler& sampler = live_sampler(request, id);
  JsonObject reply = {{"sampler_id", id}, {"base_model", sampler.base_name}};
  if (sampler.model_path) reply.add("model_path", *sampler.model_path);
  return json_response(200, reply.text());
}

struct Service::SampleCall {
  Request request;
  Respond respond;
  size_t num_bytes = request.body.size();
  std::unique_ptr<JsonBody> json = nullptr;  // until it is read
  uint64_t fingerprint = 0;
  std::string sampler_id = {};
  int64_t seq_id = 0;
  const api::BaseInfo* base = nullptr;
  SampleOrder order = {};
};

struct Service::Sampled : Completion {
  Sampled(StateStore& state, StateStore::StabilityRequest stability, int64_t most_bytes,
          TensorParts of_prompt)
      : store(state),
        record(std::move(stability)),
        max_bytes(most_bytes),
        targets(std::move(of_prompt)) {}

  Response finish(const api::Outcome& outcome) override {
    const auto& output = std::get<api::SampleOutput>(outcome);
    if (writes_files()) keep_record(output);
    return sample_response(output, targets);
  }
  [[nodiscard]] bool writes_files() const override { return !record.id.empty(); }

  void keep_record(const api::SampleOutput& output) {
    for (size_t i = 0; i < output.sequences.size(); ++i) {
      const api::SampledSequence& sequence = output.sequences[i];
      record.records.push_back(
          {fmt::format("{}:{}", record.id, i), pack_sequence(sequence.tokens, sequence.logprobs)});
    }
    store.put_stability(record, max_bytes, wall_seconds());
  }

  StateStore& store;
  StateStore::StabilityRequest record;  // without an id: none
  const int64_t max_bytes;              // of all records of the tenant
  const TensorParts targets;
};

void Service::asample(Request&& request, const Respond& respond) {
  auto call = std::make_shared<SampleCall>(SampleCall{std::move(request), respond});
  in_parts(
      respond, call->request.tenant, call->num_bytes,
      [call] {
        call->json = std::make_unique<JsonBody>(call->request.body, "asample",
                                                call->request.body_share.get());
        call->fingerprint = fingerprint_of(call->request.body);
        call->request.free_body();
      },
      [this, call] { read_sample_call(call); });
}

void Service::read_sample_call(const std::shared_ptr<SampleCall>& call) {
  const Fields body = call->json->root();
  call->sampler_id = body.string("sampling_session_id");
  const LiveSampler& sampler = live_sampler(call->request, call->sampler_id);
  call->seq_id = body.integer("seq_id", 0, INT64_MAX);
  if (std::optional<Response> known = known_sample(*call)) {
    return call->respond(std::move(*known));
  }
  call->base = &info(sampler.base);
  const auto read = [this, call] {
    const Fields fields = call->json->root();
    call->order = read_sample(fields, *call->base, random_seed());
    if (call->order.record && !options_.stable_reinforce) {
      fields.fail("record_stability_info",
                  "is switched off on this server (--stable-reinforce=off)");
    }
    if (call->order.record) check_record(fields, call->order.command);
    call->json.reset();
  };
  in_parts(call->respond, call->request.tenant, call->num_bytes, read,
           [this, call] { call->respond(submit_sample(*call)); });
}

// The answer to a request that came before.
std::optional<Response> Service::known_sample(const SampleCall& call) const {
  const Answered* known = remembered_.find(call.sampler_id, call.seq_id);
  if (known == nullptr) return std::nullopt;
  if (known->fingerprint == call.fingerprint)
    return sample_reply(known->request, call.sampler_id, call.seq_id, known->num_samples);
  return error_response(409, fmt::format("sampling session {}: seq_id {} was used for another "
                                         "request",
                                         call.sampler_id, call.seq_id));
}

Response Service::submit_sample(SampleCall& call) {
  const Request& request = call.request;
  const std::string& id = call.sampler_id;
  const int64_t seq_id = call.seq_id;
  SampleOrder& order = call.order;
  const LiveSampler& sampler = live_sampler(request, id);
  // Again: it may have come while this one was read.
  if (std::optional<Response> known = known_sample(call)) return std::move(*known);
  order.command.snapshot = sampler.snapshot;
  order.command.snapshot_dir = sampler.dir;
  const int64_t num_samples = order.command.num_samples;
  StateStore::StabilityRequest record;
  if (order.record) {
    record = {request.tenant,
              sampler.session,
              fmt::format("{}:{}", id, seq_id),
              pack_tokens(order.command.prompt),
              {}};
  }
  api::Command command =
      new_command(request.tenant, sampler.session, sampler.base, FutureKind::kSample);
  const std::string request_id = command.request.text;
  command.fingerprint = call.fingerprint;
  const int64_t promised = prompt_table_bytes(order.command);
  command.op = std::move(order.command);
  auto sampled = std::make_shared<Sampled>(parts_.store, std::move(record),
                                           options_.max_stability_bytes, std::move(order.targets));
  Response response =
      submit(request.tenant, std::move(command),
             {.completion = std::move(sampled), .promised = promised, .key_id = request.key_id});
  if (response.status != 200) return response;
  remembered_.add(request.tenant, id, seq_id, {call.fingerprint, request_id, num_samples});
  return sample_reply(request_id, id, seq_id, num_samples);
}

LiveSampler Service::find_weights(const std::string& tenant, const std::string& name) {
  SamplerRow row;
  row.id = name;
  row.base_model = name;
  if (name.starts_with("tinker://")) {
    const TinkerPath path = parse_tinker_path(name);
    if (path.kind == CheckpointKind::kExternal) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is an export; sampling wants sampler_weights", path.text()));
    }
    const CheckpointRow checkpoint =
        parts_.registry.find(path, tenant, /*may_be_public=*/true, wall_seconds());
    row.checkpoint_id = checkpoint.id;
    row.base_model = checkpoint.base_model;
    row.model_path = name;
  } else if (parts_.names.find(name) == nullptr) {
    throw Error(ErrorCode::kNotFound, fmt::format("no such model: {}", name.substr(0, 200)));
  }
  return make_sampler(row, tenant);
}

Service::Sampling Service::sample(const Request& request, const LiveSampler& weights,
                                  api::Sample sample, Listener listener) {
  sample.snapshot = weights.snapshot;
  sample.snapshot_dir = weights.dir;
  api::Command command = new_command(request.tenant, "", weights.base, FutureKind::kSample);
  Sampling out = {command.request};
  const int64_t promised = prompt_table_bytes(sample);
  command.op = std::move(sample);
  Response response =
      submit(request.tenant, std::move(command),
             {.listener = std::move(listener), .promised = promised, .key_id = request.key_id});
  if (response.status != 200) out.refusal = std::move(response);
  return out;
}

// What could never be kept is refused before it is sampled.
void Service::check_record(const Fields& body, const api::Sample& sample) const {
  const auto prompt = static_cast<int64_t>(sample.prompt.size());
  const int64_t bytes = 4 * prompt + sample.num_samples * (8 * sample.max_tokens + 100);
  if (bytes <= options_.max_stability_bytes) return;
  body.fail(
      "record_stability_info",
      fmt::format("{} samples of {} tokens may take {} bytes, and a tenant's records have {} "
                  "(--max-stability-bytes); ask for fewer num_samples or max_tokens",
                  sample.num_samples, sample.max_tokens, bytes, options_.max_stability_bytes));
}

}  // namespace strata::server
