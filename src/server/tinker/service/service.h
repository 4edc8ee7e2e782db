// SPDX-License-Identifier: Apache-2.0
// Service: what the operations of the protocol (server/tinker/operations/) work on, between HTTP
// and the engines: tables of what is alive, the way of a command to the engines and of its end
// back, and a clock. Always true between two calls:
//   - a model, or a sampler, is of a session that is alive, and its id begins with the session's;
//   - a number is remembered of a model that is alive alone, or a sampler of a session that is, or
//     whose samplers are being dropped: some thousand rows and numbers a tick; and as long as its
//     request waits;
//   - a command that the engines have taken has a future until it ends, and every future ends, also
//     when its session does.
// What must survive a restart is the state store's and the checkpoint registry's. I/O thread only,
// but for the constructor.
//   Service service(options, {...}, dispatch);  add_operations(router, service);
//   http.post([&] { service.post(events); });
//   http.call_every(0.1, [&] { service.tick(now_seconds()); })
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/event.h"
#include "api/work.h"
#include "server/http/message.h"
#include "server/store/checkpoints/registry.h"
#include "server/store/state/store.h"
#include "server/tinker/base_names.h"
#include "server/tinker/service/dispatch.h"
#include "server/tinker/service/futures.h"
#include "server/tinker/service/model_table.h"
#include "server/tinker/service/sampler_table.h"
#include "server/tinker/service/session_table.h"
#include "server/tinker/usage.h"
#include "server/tinker/view/watch.h"

namespace strata::server {

// Clock: when ticks come, about ten times a second, and how late: by it time limits leave out what
// was a standstill of the process or of the I/O thread, and new work is refused that would put the
// thread further behind. Times are now_seconds(). I/O thread, but for the constructor.
class Clock {
 public:
  // The first tick may end a standstill that began before it.
  explicit Clock(double now) : ticked_(now) {}

  // A tick: the seconds of the standstill that it ends, or 0.
  double tick(double now);

  [[nodiscard]] bool has_ticked() const { return has_ticked_; }
  [[nodiscard]] double age(double now) const { return now - ticked_; }  // of the last tick
  // By how many seconds a tick came late, the most of the last ten to twenty seconds.
  [[nodiscard]] double lag() const { return std::max(lag_, lag_before_); }
  // How late ticks come, the last ones counting most: one standstill alone is over when it is seen.
  [[nodiscard]] double behind() const { return behind_; }

 private:
  double ticked_ = 0;
  bool has_ticked_ = false;
  double lag_since_ = 0;
  double lag_ = 0, lag_before_ = 0;  // the most of these ten seconds, and of the ten before
  double behind_ = 0;
};

struct ServiceOptions {
  FutureOptions futures;
  double session_timeout = 300;
  int64_t max_rank = 128;
  int64_t max_body = 64LL << 20;
  int64_t max_queued_samples = 4096;
  int64_t max_data_values = 64LL << 20;  // of a request's dense loss inputs; bytes of its records
  int64_t max_stability_bytes = 1LL << 30;  // of a tenant's records
  int64_t max_sessions = 4096;              // alive, of a tenant
  int64_t max_samplers = 65536;             // of a session
  int64_t max_tenant_samplers = 262144;     // rows in the store
  int64_t max_ephemerals = 256;  // samplers of a session that live in memory or tmp alone
  bool stable_reinforce = true;
  std::vector<std::string> folders = {};                   // that no client is told of
  SharedLimit remembered_bytes = SharedLimit(64LL << 20);  // of numbers that came before
  SharedLimit sampler_bytes = SharedLimit(64LL << 20);     // of sampling sessions in use
};

// What the service works on; all outlive it.
struct ServiceParts {
  StateStore& store;
  CheckpointRegistry& registry;
  const BaseNames& names;
  std::vector<api::BaseInfo> bases;  // by BaseNames' model index
  Watch& watch;
  Usage& usage;
  // Runs a job of a tenant ("": of none) that reads or writes whole files elsewhere, in order; and
  // what follows it, back on the I/O thread. Without them such jobs run at once.
  std::function<void(const std::string& tenant, std::function<void()>)> aside = {};
  std::function<void(std::function<void()>)> back = {};
  // Runs a job of a tenant that takes long but touches nothing of the service.
  std::function<void(const std::string& tenant, std::function<void()>)> parse = {};
  // Whether the tenant may sample the adapter that is served by this name; without it, yes.
  std::function<bool(const std::string& tenant, const std::string& adapter)> may_sample = {};
  // Makes the grammar that samples of a base have to fit, of JSON as vLLM's `structured_outputs`
  // has it: `then` comes with it on the I/O thread, at once or later; or `respond` says why there
  // is none.
  std::function<void(const std::string& tenant, size_t base, const std::string& outputs,
                     const Respond& respond,
                     const std::function<void(std::shared_ptr<const structured::Grammar>)>& then)>
      fit = {};
};

class Service {
 public:
  static constexpr size_t kReadAtOnce = 64 << 10;  // bytes; a few milliseconds of parsing at most

  static constexpr int64_t kDropsAtOnce = 1000;  // rows and numbers of ended sessions, at a tick

  Service(const ServiceOptions& options, ServiceParts parts, Dispatch dispatch);

  static constexpr size_t kEventsAtOnce = 256;

  // What happens to requests, as the engines and the scheduler tell it: in order, some at a turn of
  // the I/O thread, so that the end of thousands keeps nobody else waiting.
  void post(std::vector<api::Event> events);
  // Ends held polls and silent sessions, drops old results. About ten times a second, with
  // now_seconds(). Time in which it was not called is no silence of anybody's: while this thread,
  // or the process, stood still, signs of life could not be read. A fault of one step is counted
  // and logged, and the other steps are done.
  void tick(double now);
  // Why nothing should be sent here now, or "": it starts, it ends, its store is away, it hangs.
  [[nodiscard]] std::string why_not_ready(double now) const;
  [[nodiscard]] double loop_lag() const { return clock_.lag(); }
  // The answer of readyz, and of one that says why not.
  [[nodiscard]] Response readiness() const;
  static Response not_ready(const std::string& why);
  // New work is refused with 503 from now on.
  void begin_shutdown() { stopping_ = true; }
  [[nodiscard]] bool is_stopping() const { return stopping_; }
  // The refusal of a request that its tenant may not make now, or that would put a thread that is
  // behind further behind; else it counts.
  std::optional<Response> charge_request(const Request& request);
  // Writes what keys have used since it was written last. Throws Error.
  void write_changed_usage();
  // Settles what was told so far, however much it is.
  void handle_all_posted() { handle_posted(posted_.size()); }
  // Fails what is still pending; every poll gets its answer.
  void fail_pending();

  // What operations work on.
  [[nodiscard]] const ServiceOptions& options() const { return options_; }
  [[nodiscard]] const ServiceParts& parts() const { return parts_; }
  [[nodiscard]] const Dispatch& dispatch() const { return dispatch_; }
  [[nodiscard]] const api::BaseInfo& info(api::BaseId base) const;
  [[nodiscard]] SessionTable& sessions() { return sessions_; }
  [[nodiscard]] ModelTable& models() { return models_; }
  [[nodiscard]] const ModelTable& models() const { return models_; }
  [[nodiscard]] SamplerTable& samplers() { return samplers_; }
  [[nodiscard]] Futures& futures() { return futures_; }
  [[nodiscard]] const Futures& futures() const { return futures_; }
  [[nodiscard]] const IdempotencyTable& remembered() const { return remembered_; }

  // What is alive. These throw Error for what is not, or is another tenant's, and note in the
  // request what it is about.
  void require_session(const Request& request, const std::string& id);
  LiveModel& require_live_model(const Request& request, const std::string& id);
  // The sampler, read again from the store where it was put away; Error where there is none.
  SamplerTable::Row require_sampler(const Request& request, const std::string& id);
  // Making and ending (alive.cc).
  // The weights that a name stands for: a base model's, an operator's adapter's, or a checkpoint's
  // path. Throws Error for none that the tenant may sample from. Its lease keeps a checkpoint's
  // files until the sample's end.
  LiveSampler make_sampler_by_name(const std::string& tenant, const std::string& name);
  LiveSampler make_sampler(const SamplerRow& row, const std::string& tenant);
  // Whether the tenant's keys let it sample what is served by this name; an Error where not.
  [[nodiscard]] bool may_sample(const std::string& tenant, const BaseName& base) const;
  void check_may_sample(const std::string& tenant, const BaseName& base) const;
  SamplerTable::Row add_live_sampler(const std::string& id, LiveSampler sampler,
                                     SharedLimit::Share bytes = {});
  // Why the store takes no more samplers of the tenant.
  std::optional<Response> refuse_over_sampler_limit(const std::string& tenant) const;
  // Forgets the model, and ends its run in the store.
  void retire_model(const std::string& id);
  // The files and the engine's copy of one whose row was taken, or never was.
  void release_ephemeral(const LiveSampler& sampler);
  // With its models and samplers, and its requests, which fail.
  void end_session(const std::string& id, const std::string& state, const std::string& reason,
                   const std::string& detail);

  // A command's way (service.cc). A new one has its request's id.
  api::Command new_command(const std::string& tenant, const std::string& session, api::BaseId base,
                           FutureKind kind);
  // One of a model of the request's tenant, at this place of the model's order. 0: at none.
  api::Command new_training_command(const Request& request, const LiveModel& model,
                                    const std::string& id, int64_t seq_id);
  // Hands the command on and answers with its future, or with why it was not taken: then what was
  // prepared for it is undone.
  Response submit(api::Command command, PendingCommand pending);
  // The answer to a number of a model that came before, as it was then, whatever has changed since.
  [[nodiscard]] std::optional<Response> find_known_answer(const RequestNumber& number,
                                                          uint64_t fingerprint) const;
  // A future that has failed already, for a fault of the data; its number is used up.
  Response reject_seq_id(const std::string& tenant, const std::string& model_id, int64_t seq_id,
                         uint64_t fingerprint, std::string_view message,
                         api::FaultCategory category = api::FaultCategory::kUser);
  // Submits a sample of the request's tenant and key, whose events the listener hears; or the
  // refusal, and it hears nothing. No future is kept of it.
  struct Sampling {
    api::RequestId request = {};
    std::optional<Response> refusal = {};
  };
  Sampling submit_sample(const Request& request, const LiveSampler& weights, api::Sample sample,
                         Listener listener);
  // A sample that has not ended fails with this reason and leaves; else nothing happens. Its end is
  // told as always, later.
  void cancel(const api::RequestId& request, const std::string& reason) {
    dispatch_.cancel(request, reason);
  }
  // Runs `work` elsewhere when it is so long that it would hold the I/O thread (more than
  // kReadAtOnce to read, say), else at once; then `then` on the I/O thread. What either throws is
  // the response.
  void run_request_work(const Respond& respond, const std::string& tenant, bool is_long,
                        std::function<void()> work, std::function<void()> then);
  // Runs a step; its fault goes to the log and the metrics. "" or the fault.
  std::string run_guarded(const char* step, const std::function<void()>& body);

 private:
  // At a path, if the tenant may sample from it.
  [[nodiscard]] CheckpointRow require_sampled_checkpoint(const std::string& tenant,
                                                         const std::string& path_text) const;
  // Parts' `aside` and `back`, or at once without them.
  void run_file_job(const std::string& tenant, const std::function<void()>& job);
  void run_on_io_thread(const std::function<void()>& done);
  void remove_files(const LiveSampler& sampler);
  // Some of what ended sessions leave, and of what reads checkpoints whose files went.
  void drop_samplers_of_ended_sessions();
  void drop_readers_of_gone_checkpoints();
  // Drops the ended session's next samplers, then the numbers of those that had made way.
  void purge_session(const std::string& session);
  [[nodiscard]] const BaseName& require_served_base(const SamplerRow& row) const;
  // The sampler reads the checkpoint that the row names, kept as long as its files may be read.
  void attach_checkpoint(const SamplerRow& row, LiveSampler& sampler);
  // What the store knows of what is not alive (alive.cc): why it ended, or the sampler again.
  [[noreturn]] void throw_session_not_alive(const Request& request, const std::string& id) const;
  [[noreturn]] void throw_model_not_alive(const Request& request, const std::string& id) const;
  [[noreturn]] void throw_ephemeral_not_alive(const SamplerRow& row) const;
  SamplerTable::Row restore_sampler(const Request& request, const std::string& id);

  // A thread that is behind takes no new data and samples.
  [[nodiscard]] std::optional<Response> shed_load(const Request& request) const;
  // Ends the reservation of a command's tokens, and charges those that were sampled.
  void settle_tokens(PendingCommand& pending, const api::Result& result, double now);

  void undo(const PendingCommand& pending);
  void note_progress(const PendingCommand& pending, const std::string& how_far);
  void handle_progress(const api::Event& event, double now);
  void handle_event(api::Event& event, double now);
  void handle_posted(size_t most);
  // Whether its end is told now; false: its answer is being made elsewhere.
  bool settle_result(const std::shared_ptr<PendingCommand>& pending, api::Result& result,
                     double now);
  // Completes the future now (true), or in the background where that takes long.
  bool dispatch_completion(const std::shared_ptr<PendingCommand>& pending, api::Result& result,
                           double now);
  // Why a command is not handed on; or the charge holds what its result may take, but for what a
  // listener is told, which is its own to hold.
  std::optional<Response> admit_command(const api::Command& command, bool is_heard,
                                        const TokenUse& use, Charge& charge);
  // A command that the engines have taken: its tokens are charged, its future added, its number
  // remembered and its listener told. The answer.
  Response register_accepted(PendingCommand pending, const std::string& model, int64_t seq_id,
                             uint64_t fingerprint, const TokenUse& use, Charge charge);
  // Takes the answer's making elsewhere, and completes the future when it is there.
  void complete_in_background(const std::shared_ptr<PendingCommand>& pending, api::Result& result);
  void write_files(const PendingCommand& pending) const;
  // The response of a success; of a fault in making it, its failure. Any thread.
  Response finish_command(const PendingCommand& pending, const api::Result& result) const;
  // The answer to a finished command; the one for a fault where it cannot be made.
  Response guarded_response(const PendingCommand& pending, const api::Result& result) const;
  // Where the server's files lie is the operator's to know: that goes into the log alone.
  [[nodiscard]] std::string redact_fault(const std::string& message) const;
  [[nodiscard]] std::string redact_fault(const Error& error) const;

  // By itself (upkeep.cc). Takes a standstill out of every time limit.
  void exclude_standstill_from_limits(double now, double seconds);
  void reconnect_store();
  // Whether there are more.
  [[nodiscard]] bool end_silent_sessions(double now);
  void forget_model(const std::string& id);
  void sweep();
  void write_usage_in_background();
  void sweep_files();
  void record_sweep_fault(std::string& last, const std::string& fault);

  ServiceOptions options_;
  ServiceParts parts_;
  Dispatch dispatch_;
  Futures futures_;
  SessionTable sessions_;
  ModelTable models_;
  SamplerTable samplers_;
  IdempotencyTable remembered_;  // every number of a model or a sampler
  Clock clock_;
  std::deque<api::Event> posted_;  // what was told and is not settled
  bool stopping_ = false;
  double last_sweep_ = 0;
  std::deque<std::string> ended_;      // sessions whose samplers are being dropped
  std::deque<std::string> gone_;       // checkpoints whose readers are
  int64_t drops_left_ = kDropsAtOnce;  // until the next tick
  bool more_to_end_ = false;           // sessions whose time was up at the last tick
  bool sweeping_ = false, writing_usage_ = false;
  bool looking_ = false;                   // for a store that was lost
  std::string usage_fault_, sweep_fault_;  // of the last ones
};

// What was thrown, or "".
std::string catch_fault(const std::function<void()>& body);

// {"request_id": ..., "model_id": ...}
Response future_response(const std::string& request_id, const std::string& model_id);

}  // namespace strata::server
