// SPDX-License-Identifier: Apache-2.0
#include "server/operations/asample.h"

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "server/crypto.h"
#include "server/json.h"
#include "server/protocol/json_body.h"
#include "server/protocol/results.h"
#include "server/protocol/sample_request.h"
#include "server/protocol/stability_record.h"

namespace strata::server {
namespace {

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

// Read on one thread, then submitted on another.
struct SampleCall {
  Request request;
  Respond respond;
  uint64_t fingerprint = 0;
  std::string sampler_id = {};
  int64_t seq_id = 0;
  SampleOrder order = {};
  std::exception_ptr fault = nullptr;  // of what is asked of the sampler
};

struct Sampled : Completion {
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

// The answer to a request that came before.
std::optional<Response> known_sample(Service& service, const SampleCall& call) {
  const KnownRequest* known = service.remembered().find({call.sampler_id, call.seq_id});
  if (known == nullptr) return std::nullopt;
  if (known->fingerprint == call.fingerprint)
    return sample_reply(known->request, call.sampler_id, call.seq_id, known->num_samples);
  return error_response(409, fmt::format("sampling session {}: seq_id {} was used for another "
                                         "request",
                                         call.sampler_id, call.seq_id));
}

[[noreturn]] void refuse_record(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "asample: record_stability_info: " + what);
}

// What could never be kept is refused before it is sampled.
void check_record(const api::Sample& sample, const ServiceOptions& options) {
  if (!options.stable_reinforce)
    refuse_record("is switched off on this server (--stable-reinforce=off)");
  const auto prompt = static_cast<int64_t>(sample.prompt.size());
  constexpr int64_t kRow = StateStore::kStabilityRowBytes;
  const int64_t bytes =
      kRow + 4 * prompt + sample.num_samples * (kRow + 8 * sample.max_tokens + 100);
  if (bytes <= options.max_stability_bytes) return;
  refuse_record(
      fmt::format("{} samples of {} tokens may take {} bytes, and a tenant's records have {} "
                  "(--max-stability-bytes); ask for fewer num_samples or max_tokens",
                  sample.num_samples, sample.max_tokens, bytes, options.max_stability_bytes));
}

// Any thread. A fault is told once its sampler is known, which the audit log names.
void read_sample_call(SampleCall& call) {
  const JsonBody json(call.request.body, "asample", call.request.body_share.get());
  call.fingerprint = Hash::of(call.request.body);
  call.sampler_id = json.root().string("sampling_session_id");
  try {
    call.seq_id = json.root().integer("seq_id", 0, INT64_MAX);
    call.order = read_sample(json.root(), random_seed());
  } catch (const Error&) {
    call.fault = std::current_exception();
  }
}

Response submit_sample(Service& service, SampleCall& call) {
  const Request& request = call.request;
  const std::string& id = call.sampler_id;
  const int64_t seq_id = call.seq_id;
  SampleOrder& order = call.order;
  const SamplerTable::Row sampler = service.live_sampler(request, id);
  if (call.fault) std::rethrow_exception(call.fault);
  if (std::optional<Response> known = known_sample(service, call)) return std::move(*known);
  fit_sample(service.info(sampler->base), order);
  if (order.record) check_record(order.command, service.options());
  order.command.snapshot = sampler->snapshot;
  order.command.snapshot_dir = sampler->dir;
  const int64_t num_samples = order.command.num_samples;
  StateStore::StabilityRequest record;
  if (order.record) {
    record = {request.tenant,
              sampler->session,
              fmt::format("{}:{}", id, seq_id),
              pack_tokens(order.command.prompt),
              {}};
  }
  api::Command command =
      service.new_command(request.tenant, sampler->session, sampler->base, FutureKind::kSample);
  const std::string request_id = command.request.text;
  command.fingerprint = call.fingerprint;
  command.op = std::move(order.command);
  auto sampled =
      std::make_shared<Sampled>(service.parts().store, std::move(record),
                                service.options().max_stability_bytes, std::move(order.targets));
  Response response = service.submit(std::move(command), {.completion = std::move(sampled),
                                                          .key_id = request.key_id,
                                                          .number = {id, seq_id},
                                                          .num_samples = num_samples});
  if (response.status != 200) return response;
  return sample_reply(request_id, id, seq_id, num_samples);
}

void asample(Service& service, Request&& request, const Respond& respond) {
  const auto call = std::make_shared<SampleCall>(SampleCall{std::move(request), respond});
  const auto read = [call] {
    read_sample_call(*call);
    call->request.free_body();
  };
  service.in_parts(respond, call->request.tenant, call->request.body.size() > Service::kReadAtOnce,
                   read, [&service, call] { call->respond(submit_sample(service, *call)); });
}

}  // namespace

constinit const Operation kAsample = {
    .path = "asample", .run = asample, .scope = Scope::kSample, .size = BodySize::kSample};

}  // namespace strata::server
