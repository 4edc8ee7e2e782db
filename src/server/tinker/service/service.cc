// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/service/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "server/http/message.h"
#include "server/http/router.h"
#include "server/store/shown_text.h"
#include "server/tinker/refusals.h"
#include "server/tinker/service/refusals.h"
#include "server/tinker/service/result_size.h"

namespace strata::server {
namespace {

constexpr size_t kValuesAtOnce = 1 << 18;  // numbers of a result; a millisecond of packing
constexpr double kBehind = 1.0;  // ticks that come later than this, not one alone: no new work

size_t num_values(const api::TopkTable& topk) { return topk.ids.size() + topk.logprobs.size(); }

// About how many numbers an answer holds.
size_t num_values(const api::Outcome& outcome) {
  size_t count = 0;
  if (const auto* sample = std::get_if<api::SampleOutput>(&outcome)) {
    count = sample->prompt_logprobs.size() + num_values(sample->prompt_topk) +
            sample->prompt_target_logprobs.size() + num_values(sample->prompt_draws);
    for (const auto& s : sample->sequences) count += 2 * s.tokens.size() + num_values(s.topk);
  } else if (const auto* result = std::get_if<api::ForwardBackwardResult>(&outcome)) {
    for (const auto& datum : result->data) count += datum.logprobs.size();
  }
  return count;
}

int64_t num_sampled_tokens(const api::SampleOutput& output) {
  int64_t tokens = 0;
  for (const api::SampledSequence& s : output.sequences) tokens += std::ssize(s.tokens);
  return tokens;
}

constexpr std::string_view kFailed = "the server failed on this request; its log says why";

// Answers a fault that is no Error.
Response failed_response(const api::RequestId& request, std::string_view fault) {
  log(LogLevel::kError, fmt::format("request {}: {}", request.text, fault));
  return failure_response(api::FaultCategory::kServer, kFailed);
}

Response conflict_response(const std::string& model_id, int64_t seq_id) {
  return error_response(
      409, fmt::format("model {}: number {} was used for another request", model_id, seq_id));
}

Response given_up_response(const std::string& model_id, int64_t seq_id) {
  return error_response(
      400, fmt::format("model {}: number {} was refused, or given up because it did not arrive "
                       "(--gap-timeout), or has run and its answer is forgotten "
                       "(--max-remembered-bytes)",
                       model_id, seq_id));
}

Response unknown_model_response(const std::string& model_id) {
  return error_response(404, fmt::format("model {} is not loaded: it was never created, its "
                                         "creation failed, or it was unloaded",
                                         model_id));
}

bool makes_model(const api::Command& command) {
  return std::holds_alternative<api::CreateModel>(command.op);
}

bool has_number(const api::Command& command) { return command.seq_id > 0 || makes_model(command); }

// Sets what the command itself says.
void fill_from_command(const api::Command& command, PendingCommand& pending) {
  pending.watched = watched_command(command, now_seconds());
  pending.tenant = command.tenant.text;
  pending.request = command.request;
  pending.is_sample = std::holds_alternative<api::Sample>(command.op);
  if (!has_number(command)) return;
  pending.number = {command.model.text,
                    makes_model(command) ? IdempotencyTable::kMaking : command.seq_id};
}

void log_accepted(const PendingCommand& pending, const std::string& model, int64_t seq_id) {
  log(LogLevel::kDebug,
      fmt::format("event=accepted request={} operation={} model={} seq_id={}", pending.request.text,
                  pending.watched.operation, model.empty() ? "-" : model, seq_id));
}

Response not_taken_response(api::Admission admission, const std::string& model_id, int64_t seq_id,
                            bool makes_model) {
  switch (admission) {
    case api::Admission::kGivenUp:
      return given_up_response(model_id, seq_id);
    case api::Admission::kUnknownModel:
      return unknown_model_response(model_id);
    case api::Admission::kTooLarge:
      return error_response(400, too_large_text());
    case api::Admission::kFull:
      return queue_full_response(makes_model);
    case api::Admission::kAccepted:
    case api::Admission::kStopping:
      break;
  }
  return refuse(kStopping);
}

}  // namespace

Response future_response(const std::string& request_id, const std::string& model_id) {
  JsonObject reply = {{"request_id", request_id}};
  if (!model_id.empty()) reply.add("model_id", model_id);
  return json_response(200, reply.text());
}

Service::Service(const ServiceOptions& options, ServiceParts parts, Dispatch dispatch)
    : options_(options),
      parts_(std::move(parts)),
      dispatch_(std::move(dispatch)),
      futures_(options.futures),
      samplers_(options.max_ephemerals, options.sampler_bytes),
      remembered_(options.remembered_bytes),
      clock_(now_seconds()) {
  const double now = last_sweep_ = now_seconds();
  for (const auto& [id, tenant] : parts_.store.read_active_sessions())
    sessions_.add(id, tenant, now);
  for (const auto& [session, count] : parts_.store.count_samplers_by_session())
    samplers_.set_stored(session, count);
}

const api::BaseInfo& Service::info(api::BaseId base) const {
  return parts_.bases.at(static_cast<size_t>(base));
}

api::Command Service::new_command(const std::string& tenant, const std::string& session,
                                  api::BaseId base, FutureKind kind) {
  api::Command command;
  command.request = futures_.new_id(tenant, kind);
  command.tenant = {tenant};
  command.session = {session};
  command.base = base;
  return command;
}

api::Command Service::new_training_command(const Request& request, const LiveModel& model,
                                           const std::string& id, int64_t seq_id) {
  api::Command command =
      new_command(request.tenant, model.session, model.base, FutureKind::kTraining);
  command.model = {id};
  command.seq_id = seq_id;
  return command;
}

void Service::require_session(const Request& request, const std::string& id) {
  request.note(id);
  if (!sessions_.contains(id, request.tenant)) throw_session_not_alive(request, id);
}

LiveModel& Service::require_live_model(const Request& request, const std::string& id) {
  request.note(id);
  LiveModel* model = models_.find(id, request.tenant);
  if (model == nullptr) throw_model_not_alive(request, id);
  return *model;
}

void Service::run_request_work(const Respond& respond, const std::string& tenant, bool is_long,
                               std::function<void()> work, std::function<void()> then) {
  if (!is_long || !parts_.parse) {
    work();
    return then();
  }
  // A response, here and there, is given at most once: `then` is not run after a fault.
  parts_.parse(tenant, [this, respond, work = std::move(work), then = std::move(then)] {
    run_answering_faults("reading a body", respond, [&] {
      work();
      parts_.back([respond, then] { run_answering_faults("reading a body", respond, then); });
    });
  });
}

std::optional<Response> Service::shed_load(const Request& request) const {
  if (clock_.behind() <= kBehind || request.route == nullptr ||
      (request.route->size != BodySize::kSample && request.route->size != BodySize::kData)) {
    return std::nullopt;
  }
  return refuse(kServerIsBehind, {clock_.behind()});
}

std::optional<Response> Service::charge_request(const Request& request) {
  if (request.route != nullptr && request.route->effect == Effect::kUpkeep) return std::nullopt;
  if (std::optional<Response> refused = shed_load(request)) return refused;
  const double now = now_seconds();
  std::optional<Response> refused =
      parts_.usage.refuse_over_limit(request.tenant, UsageKind::kRequests, 1, now);
  if (!refused) parts_.usage.charge(request.tenant, request.key_id, UsageKind::kRequests, 1, now);
  return refused;
}

std::string catch_fault(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string Service::run_guarded(const char* step, const std::function<void()>& body) {
  std::string fault = catch_fault(body);
  if (fault.empty()) return fault;
  parts_.watch.metrics().count_fault(step);
  log(LogLevel::kError, fmt::format("{}: {}", step, fault));
  return fault;
}

std::optional<Response> Service::admit_command(const api::Command& command, bool is_heard,
                                               const TokenUse& use, Charge& charge) {
  if (stopping_) return refuse(kStopping);
  const auto* sample = std::get_if<api::Sample>(&command.op);
  const int64_t bytes =
      is_heard && sample != nullptr ? prompt_table_bytes(*sample) : most_result_bytes(command);
  if (!futures_.hold_dropping_delivered(charge, bytes) && command.may_be_put_off())
    return over_budget_response(charge, bytes);
  return parts_.usage.refuse_over_limit(command.tenant.text, use, now_seconds());
}

Response Service::submit(api::Command command, PendingCommand pending) {
  const std::string tenant = command.tenant.text;
  const std::string model = command.model.text;
  const int64_t seq_id = command.seq_id;
  const uint64_t fingerprint = command.fingerprint;
  const bool is_making = makes_model(command);
  const bool is_heard = static_cast<bool>(pending.listener);
  fill_from_command(command, pending);
  const TokenUse use = tokens_of(command);
  Charge charge = futures_.open(tenant);
  std::optional<Response> answered;
  if (has_number(command)) answered = find_known_answer(pending.number, fingerprint);
  if (!answered) answered = admit_command(command, is_heard, use, charge);
  if (answered) {
    undo(pending);
    return std::move(*answered);
  }
  const api::Admission admission = dispatch_.submit(std::move(command));
  if (admission == api::Admission::kAccepted)
    return register_accepted(std::move(pending), model, seq_id, fingerprint, use,
                             std::move(charge));
  undo(pending);
  if (admission == api::Admission::kTooLarge && !model.empty())
    return reject_seq_id(tenant, model, seq_id, fingerprint, too_large_text());
  return not_taken_response(admission, model, seq_id, is_making);
}

Response Service::register_accepted(PendingCommand pending, const std::string& model,
                                    int64_t seq_id, uint64_t fingerprint, const TokenUse& use,
                                    Charge charge) {
  const api::RequestId id = pending.request;
  pending.tokens = parts_.usage.charge_command(pending.tenant, pending.key_id, use, now_seconds());
  log_accepted(pending, model, seq_id);
  const auto kept = std::make_shared<PendingCommand>(std::move(pending));
  futures_.add(id, std::move(charge), kept);
  if (!kept->number.of.empty())
    remembered_.add(kept->number, {fingerprint, id.text, kept->num_samples});
  if (kept->listener) kept->listener({id, api::Accepted{}});
  return future_response(id.text, model);
}

std::optional<Response> Service::find_known_answer(const RequestNumber& number,
                                                   uint64_t fingerprint) const {
  const KnownRequest* known = remembered_.find(number);
  if (known == nullptr) return std::nullopt;
  if (known->fingerprint == fingerprint) return future_response(known->request, number.of);
  return conflict_response(number.of, number.number);
}

void Service::undo(const PendingCommand& pending) {
  if (pending.completion) run_guarded("undo", [&] { pending.completion->undo(); });
}

Response Service::reject_seq_id(const std::string& tenant, const std::string& model_id,
                                int64_t seq_id, uint64_t fingerprint, std::string_view message,
                                api::FaultCategory category) {
  const RequestNumber number = {model_id, seq_id};
  if (auto known = find_known_answer(number, fingerprint)) return std::move(*known);
  Charge charge = futures_.open(tenant);
  if (!futures_.hold_dropping_delivered(charge, kFutureBytes + std::ssize(message)))
    return refuse(kNoSpaceForResult);
  const api::RequestId id = futures_.new_id(tenant, FutureKind::kTraining);
  futures_.add(id, std::move(charge));
  futures_.fail(id, category, message, now_seconds());
  dispatch_.consume({model_id}, seq_id);
  remembered_.add(number, {fingerprint, id.text});
  remembered_.mark_answered(tenant, number, id.text);
  return future_response(id.text, model_id);
}

void Service::handle_progress(const api::Event& event, double now) {
  const std::shared_ptr<PendingCommand> pending = futures_.find_pending(event.request);
  if (pending == nullptr) return;
  const auto note_tokens = [&](int64_t row, int64_t count) {
    pending->num_emitted += count;
    parts_.watch.record_tokens(pending->watched, row, count, now);
  };
  if (const auto* row = std::get_if<api::RowTokens>(&event.what))
    note_tokens(row->row, std::ssize(row->tokens));
  if (const auto* sampled = std::get_if<api::Sampled>(&event.what))
    return note_tokens(sampled->row, sampled->count);
  if (pending->listener) pending->listener(event);
  const auto* progress = std::get_if<api::Progress>(&event.what);
  if (progress == nullptr) return;
  note_progress(*pending, progress_text(*progress));
}

void Service::note_progress(const PendingCommand& pending, const std::string& how_far) {
  futures_.note_progress(pending.request, how_far);
  parts_.watch.note_progress(pending.watched, how_far);
}

void Service::settle_tokens(PendingCommand& pending, const api::Result& result, double now) {
  pending.tokens.reset();
  if (!pending.is_sample) return;
  const auto* output = std::get_if<api::SampleOutput>(&result.outcome);
  const int64_t tokens = output != nullptr ? num_sampled_tokens(*output) : pending.num_emitted;
  parts_.usage.charge(pending.tenant, pending.key_id, UsageKind::kSampledTokens, tokens, now);
}

bool Service::settle_result(const std::shared_ptr<PendingCommand>& pending, api::Result& result,
                            double now) {
  if (pending == nullptr) {
    if (std::holds_alternative<api::Saved>(result.outcome)) dispatch_.drop_saved(result.request);
    return true;
  }
  parts_.watch.record_outcome(pending->watched, result.request, result.outcome, now);
  settle_tokens(*pending, result, now);
  auto* failure = std::get_if<api::Failure>(&result.outcome);
  if (failure != nullptr) {
    failure->message = redact_fault(failure->message);
    undo(*pending);
  }
  if (pending->listener) {
    futures_.discard_future(result.request);
    pending->listener(std::move(result));
    return true;
  }
  if (failure != nullptr) {
    futures_.fail(result.request, failure->category, failure->message, now);
    return true;
  }
  return dispatch_completion(pending, result, now);
}

bool Service::dispatch_completion(const std::shared_ptr<PendingCommand>& pending,
                                  api::Result& result, double now) {
  const bool is_large = num_values(result.outcome) > kValuesAtOnce && parts_.parse;
  if ((pending->completion->writes_files() && parts_.aside) || is_large) {
    complete_in_background(pending, result);
    return false;
  }
  futures_.complete(result.request, finish_command(*pending, result), now);
  return true;
}

Response Service::guarded_response(const PendingCommand& pending, const api::Result& result) const {
  Response response;
  const std::string fault = catch_fault([&] { response = finish_command(pending, result); });
  return fault.empty() ? std::move(response) : failed_response(result.request, fault);
}

void Service::complete_in_background(const std::shared_ptr<PendingCommand>& pending,
                                     api::Result& result) {
  const auto moved = std::make_shared<const api::Result>(std::move(result));
  const auto job = [this, pending, moved] {
    const auto response = std::make_shared<Response>(guarded_response(*pending, *moved));
    parts_.back([this, response, pending, moved] {
      futures_.complete(moved->request, std::move(*response), now_seconds());
      remembered_.mark_answered(pending->tenant, pending->number, moved->request.text);
      parts_.watch.note_progress(pending->watched, "");
    });
  };
  if (std::holds_alternative<api::Saved>(moved->outcome))
    note_progress(*pending, "its files are being written");
  const auto& elsewhere = pending->completion->writes_files() ? parts_.aside : parts_.parse;
  elsewhere(pending->tenant, job);
}

// Where the server's files lie is the operator's to know.
std::string Service::redact_fault(const std::string& message) const {
  if (!names_folder(message, options_.folders)) return message;
  log(LogLevel::kError, message);
  return "the server could not read or write its files; its log says why";
}

// Likewise where its database is, and as whom it is there.
std::string Service::redact_fault(const Error& error) const {
  if (dynamic_cast<const StoreError*>(&error) == nullptr) return redact_fault(error.what());
  log(LogLevel::kError, error.what());
  return "the server cannot write its state now (its database is away, or its disk is full); its "
         "log says why";
}

void Service::write_files(const PendingCommand& pending) const {
  bool is_made = false;
  const std::shared_ptr<void> goes(nullptr, [&](void*) {  // else what was copied stays for good
    if (!is_made) dispatch_.drop_saved(pending.request);
  });
  pending.completion->make_folder();
  is_made = true;
  dispatch_.write_saved(pending.request);
}

Response Service::finish_command(const PendingCommand& pending, const api::Result& result) const {
  try {
    const auto* saved = std::get_if<api::Saved>(&result.outcome);
    if (saved != nullptr && saved->what != api::SavedAs::kNothing) write_files(pending);
    return pending.completion->finish(result.outcome);
  } catch (const Error& error) {
    pending.completion->undo();
    return failure_response(api::category_of(error.code), redact_fault(error));
  } catch (const std::exception& error) {
    pending.completion->undo();
    return failed_response(result.request, error.what());
  }
}

void Service::post(std::vector<api::Event> events) {
  const bool is_under_way = !posted_.empty();  // its next turn is posted
  std::move(events.begin(), events.end(), std::back_inserter(posted_));
  if (!is_under_way) handle_posted(kEventsAtOnce);
}

void Service::handle_posted(size_t most) {
  const double now = now_seconds();
  for (; most > 0 && !posted_.empty(); --most) {
    run_guarded("settle", [&] { handle_event(posted_.front(), now); });
    posted_.pop_front();
  }
  if (posted_.empty()) return;
  if (!parts_.back) return handle_posted(posted_.size());
  parts_.back([this] { handle_posted(kEventsAtOnce); });
}

void Service::handle_event(api::Event& event, double now) {
  auto* outcome = std::get_if<api::Outcome>(&event.what);
  if (outcome == nullptr) {
    run_guarded("tell", [&] { handle_progress(event, now); });
    return;
  }
  api::Result result = {event.request, std::move(*outcome)};
  const std::shared_ptr<PendingCommand> pending = futures_.take_pending(event.request);
  bool is_told = true;
  const std::string fault =
      run_guarded("settle", [&] { is_told = settle_result(pending, result, now); });
  if (!fault.empty()) futures_.fail(event.request, api::FaultCategory::kServer, kFailed, now);
  if (pending != nullptr && is_told)
    remembered_.mark_answered(pending->tenant, pending->number, event.request.text);
}

Service::Sampling Service::submit_sample(const Request& request, const LiveSampler& weights,
                                         api::Sample sample, Listener listener) {
  sample.snapshot = weights.snapshot;
  sample.snapshot_dir = weights.dir;
  api::Command command = new_command(request.tenant, "", weights.base, FutureKind::kSample);
  Sampling out = {command.request};
  command.op = std::move(sample);
  Response response =
      submit(std::move(command), {.listener = std::move(listener), .key_id = request.key_id});
  if (response.status != 200) out.refusal = std::move(response);
  return out;
}

}  // namespace strata::server
