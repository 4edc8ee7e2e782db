// SPDX-License-Identifier: Apache-2.0
// Service: the Tinker protocol between HTTP and the engines. Turns requests into commands, keeps
// what lives while the process does (sessions' clocks, models, samplers, futures), and turns
// results into responses. What must survive a restart is the state store's and the checkpoint
// registry's. I/O thread only, but for the constructor.
//   Service service(options, {...}, dispatch);  service.add_routes(router);
//   http.post([&] { service.post(events); });
//   http.call_every(0.1, [&] { service.tick(now_seconds()); })
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/event.h"
#include "api/work.h"
#include "server/base_names.h"
#include "server/checkpoints/registry.h"
#include "server/http/router.h"
#include "server/protocol/forward_backward.h"
#include "server/protocol/json_body.h"
#include "server/service/dispatch.h"
#include "server/service/futures.h"
#include "server/service/model_table.h"
#include "server/service/pending_command.h"
#include "server/service/remembered.h"
#include "server/service/sampler_table.h"
#include "server/service/session_table.h"
#include "server/state/store.h"
#include "server/usage.h"
#include "server/view/watch.h"

namespace strata::server {

struct ServiceOptions {
  FutureOptions futures;
  double session_timeout = 300;
  int64_t max_rank = 128;
  int64_t max_body = 64LL << 20;
  int64_t max_queued_samples = 4096;
  int64_t max_pass_values = 64LL << 20;  // of a request's dense loss inputs; bytes of its records
  int64_t max_stability_bytes = 1LL << 30;  // of a tenant's records
  int64_t max_sessions = 4096;              // alive, of a tenant
  int64_t max_samplers = 65536;             // of a session
  int64_t max_ephemerals = 256;  // samplers of a session that live in memory or tmp alone
  bool stable_reinforce = true;
  SharedLimit remembered_bytes = SharedLimit(64LL << 20);  // of numbers that came before
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
};

class Service {
 public:
  Service(const ServiceOptions& options, ServiceParts parts, Dispatch dispatch);

  void add_routes(Router& router);

  // What happens to requests, as the engines and the scheduler tell it: in order for each.
  void post(std::vector<api::Event> events);

  // For front ends that are not the Tinker protocol. The weights that a name stands for: a base
  // model's, an operator's adapter's, or a checkpoint's path. Throws Error for none that the tenant
  // may sample from. Its lease keeps a checkpoint's files until the sample's end.
  LiveSampler find_weights(const std::string& tenant, const std::string& name);
  // Submits a sample of the request's tenant and key, whose events the listener hears; or the
  // refusal, and it hears nothing. No future is kept of it.
  struct Sampling {
    api::RequestId request = {};
    std::optional<Response> refusal = {};
  };
  Sampling sample(const Request& request, const LiveSampler& weights, api::Sample sample,
                  Listener listener);
  // A sample that has not ended fails with this reason and leaves; else nothing happens. Its end is
  // told as always, later.
  void cancel(const api::RequestId& request, const std::string& reason) {
    dispatch_.cancel(request, reason);
  }
  // Ends held polls and silent sessions, drops old results. About ten times a second, with
  // now_seconds(). Time in which it was not called is no silence of anybody's: while this thread,
  // or the process, stood still, signs of life could not be read. A fault of one step is counted
  // and logged, and the other steps are done.
  void tick(double now);
  // Why nothing should be sent here now, or "": it starts, it ends, its store is away, it hangs.
  [[nodiscard]] std::string unready(double now) const;
  // By how many seconds a tick came late, the most of the last ten to twenty seconds.
  [[nodiscard]] double loop_lag() const { return std::max(lag_, lag_before_); }
  // The answer of readyz, and of one that says why not.
  [[nodiscard]] Response readiness() const;
  static Response not_ready(const std::string& why);
  // New work is refused with 503 from now on.
  void begin_shutdown() { stopping_ = true; }
  // The refusal of a request that its tenant may not make now, or that would put a thread that is
  // behind further behind; else it counts.
  std::optional<Response> admit(const Request& request);
  // Writes what keys have used since it was written last. Throws Error.
  void keep_usage();
  // Fails what is still pending; every poll gets its answer.
  void fail_pending();

  [[nodiscard]] const std::map<std::string, LiveModel>& models() const { return models_.rows(); }
  [[nodiscard]] const Futures& futures() const { return futures_; }
  [[nodiscard]] size_t num_sessions() const { return sessions_.size(); }

 private:
  struct SaveForm {
    const char* name;  // of the endpoint
    CheckpointKind kind;
  };

  struct Operation;  // operations.cc has them as rows
  static std::span<const Operation> operations();
  Response health(const Request& request);
  Response ready(const Request&) { return readiness(); }
  Response dynamic_config(const Request& request);
  Response telemetry(const Request& request);

  // Sessions (session_handlers.cc)
  Response client_config(const Request& request);
  Response capabilities(const Request& request);
  Response create_session(const Request& request);
  Response heartbeat(const Request& request);
  Response finish_session(const Request& request);
  void end_session(const std::string& id, const std::string& state, const std::string& reason,
                   const std::string& detail);
  [[nodiscard]] std::optional<Response> may_not_end(const Request& request, const std::string& id);
  // Throws Error for one that is not alive, or not the tenant's.
  void require_session(const Request& request, const std::string& id);

  // Models (model_handlers.cc)
  struct ModelMade;
  struct ModelUnloaded;
  Response create_model(const Request& request);
  Response create_from_checkpoint(const Request& request, const Fields& body);
  CheckpointRow find_to_load(const Request& request, const TinkerPath& path);
  Response start_model(const Request& request, const Fields& body, const std::string& session,
                       const BaseName& base, const std::string& base_name, api::CreateModel create,
                       std::shared_ptr<void> lease, const char* type);
  Response get_info(const Request& request);
  Response unload_model(const Request& request);
  Response weights_info(const Request& request);
  const BaseName& find_base(const Fields& body, const std::string& name) const;
  // The same of one that trains: an adapter of the operator's is refused.
  const BaseName& find_trainable(const Fields& body, const std::string& name) const;
  api::LoraConfig read_lora(const Fields& body) const;
  LiveModel& live_model(const Request& request, const std::string& id);
  void drop_model(const std::string& id);

  // Training (training_handlers.cc)
  struct Stepped;
  struct StateLoaded;
  struct CheckpointSaved;
  struct EphemeralSaved;
  void forward_backward(Request&& request, const Respond& respond);
  void forward(Request&& request, const Respond& respond);
  Response optim_step(const Request& request);
  Response load_weights(const Request& request);
  Response save(const Request& request, const SaveForm& form);
  Response save_weights(const Request& request) {
    return save(request, {"save_weights", CheckpointKind::kWeights});
  }
  Response save_weights_for_sampler(const Request& request) {
    return save(request, {"save_weights_for_sampler", CheckpointKind::kSampler});
  }
  Response save_weights_external(const Request& request) {
    return save(request, {"save_weights_external", CheckpointKind::kExternal});
  }
  Response save_ephemeral(const Request& request, const Fields& body, const std::string& model_id,
                          int64_t seq_id);
  Response submit_save(const Request& request, const Fields& body, const SaveForm& form,
                       const std::string& model_id, int64_t seq_id);

  // Passes (pass_handlers.cc): parsed, then built for their model, then submitted.
  struct Pass;
  struct PassDone;
  void take_pass(Request&& request, const Respond& respond, PassForm form);
  void build_pass(const std::shared_ptr<Pass>& pass);
  Response submit_pass(Pass& pass);
  std::optional<SampleRecord> find_record(const std::string& session, const std::string& sequence);

  // Usage (usage_handlers.cc)
  void usage(const Request& request, const Respond& respond);
  [[nodiscard]] std::optional<Response> shed(const Request& request) const;
  struct TokenUse {
    int64_t trained = 0, prompt = 0;
    int64_t most_sampled = 0;
  };
  static TokenUse tokens_of(const api::Command& command);
  [[nodiscard]] std::optional<Response> over_limit(const api::Command& command);
  void count_accepted(const TokenUse& use, PendingCommand& pending);
  void count_settled(PendingCommand& pending, const api::Result& result, double now);

  // Sampling (sampling_handlers.cc)
  Response create_sampling_session(const Request& request);
  struct SampleCall;
  struct Sampled;
  void asample(Request&& request, const Respond& respond);
  void read_sample_call(const std::shared_ptr<SampleCall>& call);
  Response get_sampler(const Request& request);
  const LiveSampler& live_sampler(const Request& request, const std::string& id);
  LiveSampler make_sampler(const SamplerRow& row, const std::string& tenant);
  void keep_sampler(const std::string& id, LiveSampler sampler);
  void drop_sampler(const std::string& id);
  void check_record(const Fields& body, const api::Sample& sample) const;
  [[nodiscard]] std::optional<Response> known_sample(const SampleCall& call) const;
  Response submit_sample(SampleCall& call);

  // Cancelling (cancel_handlers.cc)
  Response cancel_future(const Request& request);
  Response cancel_request(const Request& request);
  Response cancel_pending(const Request& request, const PendingCommand& pending,
                          std::string_view why);

  // service.cc
  api::Command new_command(const std::string& tenant, const std::string& session, api::BaseId base,
                           FutureKind kind);
  // Of the model, at this place of its order.
  api::Command training_command(const Request& request, const LiveModel& model,
                                const std::string& id, int64_t seq_id);
  // Runs `work` elsewhere when it has so many bytes to read that it would hold the I/O thread, else
  // at once; then `then` on the I/O thread. What either throws is the response.
  void in_parts(const Respond& respond, const std::string& tenant, size_t num_bytes,
                std::function<void()> work, std::function<void()> then);
  // Hands the command on and answers with its future, or with why it was not taken: then what was
  // prepared for it is undone.
  Response submit(const std::string& tenant, api::Command command, PendingCommand pending);
  // The answer to a number of a model that came before, as it was then, whatever has changed since.
  [[nodiscard]] std::optional<Response> known_number(const std::string& model_id, int64_t seq_id,
                                                     uint64_t fingerprint) const;
  void undo(const PendingCommand& pending);
  // A future that has failed already, for a fault of the data; its number is used up.
  Response refuse_later(const std::string& tenant, const std::string& model_id, int64_t seq_id,
                        uint64_t fingerprint, std::string_view message,
                        api::FaultCategory category = api::FaultCategory::kUser);
  // Runs `body`; when it throws, the number is used up.
  Response with_number(const std::string& model_id, int64_t seq_id,
                       const std::function<Response()>& body);
  void tell(const api::Event& event);
  void settle(api::Result& result, double now);
  // Takes the answer's making elsewhere, and completes the future when it is there.
  void settle_aside(const std::shared_ptr<PendingCommand>& pending, api::Result& result);
  void retrieve_future(const Request& request, const Respond& respond);
  // Takes a standstill out of every time limit.
  void excuse(double now, double seconds);
  void note_lag(double now, double gap);
  void look_for_store();
  // Whether there are more.
  [[nodiscard]] bool end_silent(double now);
  void sweep();
  // Runs a step; its fault goes to the log and the metrics. "" or the fault.
  std::string guarded(const char* step, const std::function<void()>& body);
  // The response of a success; of a fault in making it, its failure. Any thread.
  Response answer(const PendingCommand& pending, const api::Result& result) const;
  [[nodiscard]] std::string for_clients(const std::string& message) const;
  const api::BaseInfo& info(api::BaseId base) const;

  ServiceOptions options_;
  ServiceParts parts_;
  Dispatch dispatch_;
  Futures futures_;
  bool stopping_ = false;
  SessionTable sessions_;
  ModelTable models_;
  SamplerTable samplers_;
  Remembered remembered_;  // every number of a model or a sampler
  double ticked_ = 0;      // when tick() began last, or this
  bool has_ticked_ = false;
  double last_sweep_ = 0;
  bool more_to_end_ = false;  // sessions whose time was up at the last tick
  double lag_since_ = 0;
  double behind_ = 0;                // how late ticks come, the last ones counting most
  double lag_ = 0, lag_before_ = 0;  // the most of these ten seconds, and of the ten before
  bool sweeping_ = false;
  bool looking_ = false;     // for a store that was lost
  std::string store_fault_;  // of the last sweep
};

// {"request_id": ..., "model_id": ...}
Response future_response(const std::string& request_id, const std::string& model_id);
// 1 s to 10 years, or nothing.
std::optional<int64_t> read_ttl(const Fields& body);
// Limits of user_metadata: 64 entries, 16 KiB.
std::optional<std::string> read_metadata(const Fields& body);
// A non-null weights_access_token is refused by name.
void refuse_token(const Fields& body);

}  // namespace strata::server
