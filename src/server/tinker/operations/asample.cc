// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/operations/asample.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "api/context.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/hash.h"
#include "server/http/message.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/protocol/common_fields.h"
#include "server/tinker/protocol/json_data.h"
#include "server/tinker/protocol/results.h"
#include "server/tinker/protocol/stability_record.h"
#include "structured/json_schema.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

constexpr int64_t kMaxSamples = 1024;
constexpr int64_t kMaxTopk = 1024;
constexpr size_t kMaxStopIds = 1024;
constexpr size_t kMaxStopTexts = 64;
constexpr size_t kMaxStopText = 1024;
constexpr double kMaxResultBytes = 256.0 * (1 << 20);

std::vector<int32_t> read_prompt(const text::Fields& body) {
  std::vector<int32_t> prompt = read_model_input(body.object("prompt"), 0, INT32_MAX);
  if (prompt.empty()) body.fail("prompt", "the prompt is empty");
  return prompt;
}

std::vector<int32_t> read_stop_ids(const text::Fields& params) {
  std::vector<int32_t> out;
  const std::vector<int64_t> ids = params.integers("stop");
  if (ids.size() > kMaxStopIds) {
    params.fail("stop", fmt::format("has {} ids, the limit is {}", ids.size(), kMaxStopIds));
  }
  for (const int64_t id : ids) {
    if (id < 0 || id > INT32_MAX) {
      params.fail("stop", fmt::format("token {} is outside 0 to {}", id, INT32_MAX));
    }
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

void read_stop(const text::Fields& params, SampleOrder& order) {
  api::Sample& command = order.command;
  if (!params.has("stop")) return;
  if (params.is_string("stop") || params.is_array_of_strings("stop")) {
    command.stop_texts = read_stop_texts(params, kMaxStopTexts, kMaxStopText);
    return;
  }
  command.stop = read_stop_ids(params);
  order.stops_at_end = !command.stop.empty();
}

float read_temperature(const text::Fields& params) {
  const double temperature = params.number_or("temperature", 1.0);
  // Logits divided by less than a thousandth leave the range of numbers.
  if (temperature < 0 || temperature > 1e6 || (temperature > 0 && temperature < 1e-3)) {
    params.fail("temperature",
                fmt::format("got {}, wanted 0, or from 0.001 to 1000000", temperature));
  }
  return static_cast<float>(temperature);
}

float read_top_p(const text::Fields& params) {
  const double top_p = params.number_or("top_p", 1.0);
  if (static_cast<float>(top_p) <= 0 || top_p > 1) {
    params.fail("top_p", fmt::format("got {}, wanted above 0 and at most 1", top_p));
  }
  return static_cast<float>(top_p);
}

void read_sampling_params(const text::Fields& body, uint64_t fallback_seed, SampleOrder& order) {
  api::Sample& command = order.command;
  const text::Fields params = body.object("sampling_params");
  command.max_tokens = params.integer_or("max_tokens", 0, 1, INT64_MAX / 2);
  command.temperature = read_temperature(params);
  command.top_p = read_top_p(params);
  command.top_k = std::max<int64_t>(0, params.integer_or("top_k", -1, -1, INT32_MAX));
  command.seed = params.maybe_int64_bits("seed").value_or(fallback_seed);
  read_stop(params, order);
}

void read_logprob_options(const text::Fields& body, api::Sample& command) {
  command.prompt_logprobs = body.boolean_or("prompt_logprobs", false);
  command.topk_prompt_logprobs = body.integer_or("topk_prompt_logprobs", 0, 0, kMaxTopk);
  command.topk_sample_logprobs = body.integer_or("topk_sample_logprobs", 0, 0, kMaxTopk);
  command.prompt_draws = body.integer_or("prompt_alt_tokens_k", 0, 0, kMaxTopk);
  if (!body.has("prompt_logprobs_last_n")) return;
  const auto prompt_size = static_cast<int64_t>(command.prompt.size());
  if (!command.prompt_logprobs) {
    body.fail("prompt_logprobs_last_n", "needs prompt_logprobs: true");
  }
  command.first_prompt_logprob =
      prompt_size - body.integer("prompt_logprobs_last_n", 1, prompt_size - 1);
}

std::vector<int32_t> read_target_ids(const text::Fields& tensor) {
  std::vector<int32_t> ids;
  for (const int64_t id : tensor.integers("data")) {
    if (id < -1 || id > INT32_MAX) {
      tensor.fail("data", fmt::format("token {} is outside -1 to {}", id, INT32_MAX));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  if (std::none_of(ids.begin(), ids.end(), [](int32_t id) { return id >= 0; }))
    tensor.fail("data", "names no token");
  return ids;
}

TensorParts read_tensor_parts(const text::Fields& tensor) {
  TensorParts parts;
  parts.shape = tensor.integers("shape");
  parts.is_sparse = tensor.has("sparse_crow_indices") || tensor.has("sparse_col_indices");
  if (!parts.is_sparse) return parts;
  parts.crow = tensor.integers("sparse_crow_indices");
  parts.col = tensor.integers("sparse_col_indices");
  return parts;
}

// Where the entries of each row begin, and the last one's end.
std::vector<int64_t> row_offsets(const TensorParts& parts, int64_t rows, int64_t columns) {
  if (parts.is_sparse) return parts.crow;
  std::vector<int64_t> offsets;
  for (int64_t row = 0; row <= rows; ++row) offsets.push_back(row * columns);
  return offsets;
}

// [P - 1, K], dense or CSR; the layout is the answer's too.
std::optional<TensorParts> read_prompt_targets(const text::Fields& body, api::Sample& command) {
  constexpr const char* kName = "target_prompt_logprobs";
  if (!body.has(kName)) return std::nullopt;
  const text::Fields tensor = body.object(kName);
  if (tensor.string("dtype") != "int64") tensor.fail("dtype", "wanted 'int64'");
  command.prompt_targets.ids = read_target_ids(tensor);
  const std::vector<int32_t>& ids = command.prompt_targets.ids;
  TensorParts parts = read_tensor_parts(tensor);
  const auto rows = static_cast<int64_t>(command.prompt.size()) - 1;
  const TensorLayout layout =
      checked_tensor_layout(parts, std::ssize(ids), fmt::format("asample: {}", kName),
                            {.rows = rows, .columns = kMaxTopk, .elements = INT32_MAX});
  if (layout.num_columns == 0 || layout.num_rows != rows) {
    tensor.fail("shape",
                fmt::format("wanted [{}, K]: a row for each prompt token but the first", rows));
  }
  command.prompt_targets.first = row_offsets(parts, rows, layout.num_columns);
  return parts;
}

// What answers have to fit is read where the model's tokens are known.
void read_outputs(const text::Fields& body, SampleOrder& order) {
  constexpr const char* kName = "structured_outputs";
  if (!body.has(kName)) return;
  static_cast<void>(body.object(kName));
  if (order.command.prompt_logprobs && order.command.max_tokens == 1)
    body.fail(kName,
              "with prompt_logprobs and max_tokens 1 the prompt alone is asked about, and "
              "no answer; leave it out");
  order.outputs = boost::json::serialize(*body.find(kName));
  // It is read again on the I/O thread, where a large one would keep everybody waiting. A schema
  // that is written as a text takes twice its size at most, but for what is escaped by number.
  constexpr size_t kMostBytes = 8 * structured::kMaxSchemaBytes;
  if (order.outputs.size() > kMostBytes)
    body.fail(kName,
              fmt::format("takes {} bytes, want at most {}", order.outputs.size(), kMostBytes));
}

[[noreturn]] void fail(const std::string& field, const std::string& what) {
  throw text::FieldFault(fmt::format("asample: {}: {}", field, what), field);
}

void check_ids(const std::string& field, const std::vector<int32_t>& ids, int32_t least,
               int64_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < least || id >= vocab_size)
      fail(field, fmt::format("token {} is outside {} to {}", id, least, vocab_size - 1));
  }
}

void check_topk_counts(const api::Sample& command, int64_t vocab_size) {
  for (const auto& [field, count] :
       {std::pair("topk_prompt_logprobs", command.topk_prompt_logprobs),
        std::pair("topk_sample_logprobs", command.topk_sample_logprobs),
        std::pair("prompt_alt_tokens_k", command.prompt_draws)}) {
    if (count > vocab_size) fail(field, fmt::format("got {}, wanted 0 to {}", count, vocab_size));
  }
}

void check_result_size(const api::Sample& command) {
  const double per_token = 8.0 + 8.0 * static_cast<double>(command.topk_sample_logprobs);
  const double per_position =
      4.0 + 8.0 * static_cast<double>(command.topk_prompt_logprobs + command.prompt_draws);
  const double bytes = static_cast<double>(command.num_samples) *
                           static_cast<double>(command.max_tokens) * per_token +
                       static_cast<double>(command.prompt.size()) * per_position;
  if (bytes <= kMaxResultBytes) return;
  fail("num_samples", fmt::format("the result could have {:.0f} bytes, the limit is {:.0f}; "
                                  "ask for fewer samples, tokens or top-k entries",
                                  bytes, kMaxResultBytes));
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
          std::optional<TensorParts> of_prompt)
      : store(state),
        record(std::move(stability)),
        max_bytes(most_bytes),
        targets(std::move(of_prompt)) {}

  Response finish(const api::Outcome& outcome) override {
    const auto& output = std::get<api::SampleOutput>(outcome);
    if (writes_files()) store_record(output);
    return sample_response(output, targets);
  }
  [[nodiscard]] bool writes_files() const override { return !record.id.empty(); }

  void store_record(const api::SampleOutput& output) {
    for (size_t i = 0; i < output.sequences.size(); ++i) {
      const api::SampledSequence& sequence = output.sequences[i];
      record.records.push_back(
          {fmt::format("{}:{}", record.id, i), pack_sequence(sequence.tokens, sequence.logprobs)});
    }
    store.save_stability_within_quota(record, max_bytes, wall_seconds());
  }

  StateStore& store;
  StateStore::StabilityRequest record;  // without an id: none
  const int64_t max_bytes;              // of all records of the tenant
  const std::optional<TensorParts> targets;
};

// The answer to a request that came before.
std::optional<Response> find_known_sample_reply(Service& service, const SampleCall& call) {
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
void check_stability_record(const api::Sample& sample, const ServiceOptions& options) {
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

// Without the records of its sequences.
StateStore::StabilityRequest make_stability_request(const SampleCall& call,
                                                    const std::string& session) {
  return {call.request.tenant,
          session,
          fmt::format("{}:{}", call.sampler_id, call.seq_id),
          pack_tokens(call.order.command.prompt),
          {}};
}

// Any thread. A fault is told once its sampler is known, which the audit log names.
void read_sample_call(SampleCall& call) {
  const text::JsonBody json(call.request.body, "asample", call.request.charge.get());
  call.fingerprint = Hash::of(call.request.body);
  call.sampler_id = json.root().string("sampling_session_id");
  try {
    call.seq_id = json.root().integer("seq_id", 0, INT64_MAX);
    call.order = read_sample(json.root(), random_seed());
  } catch (const Error&) {
    call.fault = std::current_exception();
  }
}

// What answers the call, and keeps the record where it asks for one; before its command is taken.
std::shared_ptr<Sampled> take_completion(Service& service, SampleCall& call,
                                         const std::string& session) {
  StateStore::StabilityRequest record;
  if (call.order.record) record = make_stability_request(call, session);
  return std::make_shared<Sampled>(service.parts().store, std::move(record),
                                   service.options().max_stability_bytes,
                                   std::move(call.order.targets));
}

// Moves the call's order into it.
api::Command take_sample_command(Service& service, SampleCall& call, const LiveSampler& sampler) {
  api::Command command =
      service.new_command(call.request.tenant, sampler.session, sampler.base, FutureKind::kSample);
  api::Sample& sample = call.order.command;
  sample.snapshot = sampler.snapshot;
  sample.snapshot_dir = sampler.dir;
  command.fingerprint = call.fingerprint;
  command.op = std::move(sample);
  return command;
}

Response submit_sample(Service& service, SampleCall& call) {
  const Request& request = call.request;
  const std::string& id = call.sampler_id;
  const int64_t seq_id = call.seq_id;
  SampleOrder& order = call.order;
  const SamplerTable::Row sampler = service.require_sampler(request, id);
  if (call.fault) std::rethrow_exception(call.fault);
  if (std::optional<Response> known = find_known_sample_reply(service, call))
    return std::move(*known);
  resolve_sample(service.info(sampler->base), order);
  if (order.record) check_stability_record(order.command, service.options());
  const int64_t num_samples = order.command.num_samples;
  std::shared_ptr<Sampled> completion = take_completion(service, call, sampler->session);
  api::Command command = take_sample_command(service, call, *sampler);
  const std::string request_id = command.request.text;
  Response response = service.submit(std::move(command), {.completion = std::move(completion),
                                                          .key_id = request.key_id,
                                                          .number = {id, seq_id},
                                                          .num_samples = num_samples});
  if (response.status != 200) return response;
  return sample_reply(request_id, id, seq_id, num_samples);
}

// Submits the sample once its grammar is there, if it wants one.
void submit_constrained(Service& service, const std::shared_ptr<SampleCall>& call) {
  const auto submit = [&service, call] { call->respond(submit_sample(service, *call)); };
  if (call->order.outputs.empty() || call->fault) return submit();
  const SamplerTable::Row sampler = service.require_sampler(call->request, call->sampler_id);
  service.parts().fit(call->request.tenant, static_cast<size_t>(sampler->base), call->order.outputs,
                      call->respond,
                      [call, submit](std::shared_ptr<const structured::Grammar> grammar) {
                        call->order.command.grammar = std::move(grammar);
                        submit();
                      });
}

void asample(Service& service, Request&& request, const Respond& respond) {
  const auto call = std::make_shared<SampleCall>(SampleCall{std::move(request), respond});
  const auto read = [call] {
    read_sample_call(*call);
    call->request.free_body();
  };
  service.run_request_work(respond, call->request.tenant,
                           call->request.body.size() > Service::kReadAtOnce, read,
                           [&service, call] { submit_constrained(service, call); });
}

}  // namespace

SampleOrder read_sample(const text::Fields& body, uint64_t fallback_seed) {
  SampleOrder order;
  api::Sample& command = order.command;
  command.prompt = read_prompt(body);
  command.num_samples = body.integer_or("num_samples", 1, 1, kMaxSamples);
  read_sampling_params(body, fallback_seed, order);
  read_logprob_options(body, command);
  order.targets = read_prompt_targets(body, command);
  order.record = body.boolean_or("record_stability_info", false);
  read_outputs(body, order);
  return order;
}

void resolve_sample(const api::BaseInfo& base, SampleOrder& order) {
  api::Sample& command = order.command;
  const int64_t prompt = std::ssize(command.prompt);
  const int64_t left = base.max_context - prompt;
  if (command.max_tokens == 0) command.max_tokens = std::max<int64_t>(left, 1);
  if (const auto fault = api::find_context_fault(prompt, command.max_tokens, base.max_context))
    fail(left < 1 ? "prompt" : "sampling_params.max_tokens",
         *fault + api::context_note(base.max_context, base.model_context));
  check_ids("prompt", command.prompt, 0, base.vocab_size);
  check_ids("sampling_params.stop", command.stop, 0, base.vocab_size);
  check_ids("target_prompt_logprobs.data", command.prompt_targets.ids, -1, base.vocab_size);
  if (order.stops_at_end)
    command.stop.insert(command.stop.end(), base.end_tokens.begin(), base.end_tokens.end());
  command.top_k = std::min(command.top_k, base.vocab_size);
  if (command.grammar != nullptr && command.stop.empty())
    fail("structured_outputs",
         "an answer that fits ends with an end token, and "
         "sampling_params.stop is []; leave that out");
  check_topk_counts(command, base.vocab_size);
  check_result_size(command);
}

constinit const Operation kAsample = {
    .path = "asample", .run = asample, .scope = Scope::kSample, .size = BodySize::kSample};

}  // namespace strata::server
