// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/serve.h"

#include <fmt/format.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include "apps/serve/end_watch.h"
#include "apps/serve/engine_host.h"
#include "apps/serve/memory.h"
#include "apps/serve/merger.h"
#include "apps/serve/notify.h"
#include "apps/serve/served_ranks.h"
#include "apps/serve/served_texts.h"
#include "apps/serve/signal_wait.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process_memory.h"
#include "base/say.h"
#include "base/stop.h"
#include "planner/plan_text.h"
#include "report/format.h"
#include "report/table.h"
#include "report/trace_file.h"
#include "server/tinker/budget.h"
#include "server/tinker_server.h"
#include "setup/backend.h"
#include "setup/engine_setup.h"
#include "setup/ranks.h"

namespace strata::apps {
namespace {

constexpr int kDropped = 3;           // the exit status when accepted work was not done
constexpr double kLastSeconds = 10;   // for threads to end and answers to leave, at a shutdown
constexpr double kAtOnce = 1;         // the same behind a second signal
constexpr double kStep = 0.02;        // seconds between looks at a shutdown's progress
constexpr double kLongStep = 3600;    // where nothing is to be told between two signals
constexpr int kOwnMapping = 1 << 20;  // bytes: what is larger goes back to the system when freed

server::EngineStats stats_of(const EngineHost& host, const scheduler::Scheduler& scheduler) {
  const EngineHost::Counts counts = host.counts();
  const scheduler::SchedulerStats queues = scheduler.stats();
  const engine::RunPlan& plan = host.plan();
  using enum engine::MemoryUse;
  return {.trained_tokens = counts.trained_tokens,
          .sampled_tokens = counts.sampled_tokens,
          .drafts_read = counts.drafts_read,
          .drafts_accepted = counts.drafts_accepted,
          .prompt_tokens = counts.prompt_tokens,
          .cached_tokens = counts.cached_tokens,
          .train_passes = counts.train_passes,
          .batch_tokens = counts.batch_tokens,
          .running_samples = counts.running_samples,
          .queued_training = queues.queued_training,
          .held_training = queues.held_training,
          .queued_samples = queues.queued_samples,
          .queued_bytes = queues.queued_bytes,
          .adapters = counts.adapters,
          .turn_seconds = counts.turn_seconds,
          .weights = plan.memory.bytes_of(kWeights),
          .passes = plan.memory.bytes_of(kPasses) + plan.memory.bytes_of(kSamplingSteps),
          .adapter_bytes = counts.adapter_bytes,
          .adapter_limit = plan.memory.bytes_of(kAdapters),
          .snapshot_bytes = counts.snapshot_bytes,
          .snapshot_limit = plan.memory.bytes_of(kSamplerWeights),
          .kv_bytes = counts.kv_bytes,
          .kv_limit = plan.memory.bytes_of(kKvCache),
          .state_bytes = counts.state_bytes,
          .state_limit = plan.memory.bytes_of(kStates),
          .prefix_bytes = counts.prefix_bytes,
          .budget = plan.server.budget};
}

// Signals are taken by sigtimedwait alone: blocked before the first thread is made. SIGUSR1 is
// ours, for LeaveWhileStarting.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

void say_as_strata(const std::string& text) { say("strata: " + text + "\n"); }

// SIGUSR1 says that it has started.
void exit_on_signal_until_started(const sigset_t& signals) {
  int signal = 0;
  while (signal != SIGUSR1) {
    signal = sigwaitinfo(&signals, nullptr);
    if (signal == SIGHUP || signal == SIGUSR1) continue;
    say_as_strata("stopped while it was starting");
    std::_Exit(0);
  }
}

// While it starts, which may take minutes, or for ever where a file hangs, and answers nobody, a
// signal ends the process at once.
class LeaveWhileStarting {
 public:
  explicit LeaveWhileStarting(const sigset_t& signals)
      : thread_([signals] { exit_on_signal_until_started(signals); }) {}
  LeaveWhileStarting(const LeaveWhileStarting&) = delete;
  LeaveWhileStarting& operator=(const LeaveWhileStarting&) = delete;
  ~LeaveWhileStarting() {
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }

 private:
  std::thread thread_;
};

// Until SIGTERM or SIGINT; says which. SIGHUP reloads, and a manager's watchdog hears of us as long
// as the I/O thread runs.
int handle_signals_until_end(const sigset_t& signals, server::TinkerServer& server) {
  const std::optional<double> watchdog = watchdog_seconds();
  const double step = watchdog ? *watchdog / 4 : kLongStep;
  while (true) {
    const int signal = wait_for_signal(signals, step);
    if (signal == SIGHUP) {
      notify_manager(reloading_text());
      server.reload([] { notify_manager("READY=1"); });
    } else if (signal > 0) {
      return signal;
    }
    if (watchdog && server.tick_age() < *watchdog / 2) notify_manager("WATCHDOG=1");
  }
}

// Left alone, glibc takes buffers of up to 32 MiB from its heap once one of them has been freed.
// Bodies that grow side by side leave holes there, resident but in nobody's --max-body-bytes.
void tune_malloc_for_large_buffers() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, kOwnMapping);
  mallopt(M_TRIM_THRESHOLD, 2 * kOwnMapping);  // as glibc has it when it moves the other one
#endif
}

std::string address_text(const server::HostPort& address, int port, const char* scheme) {
  return address.path.empty() ? fmt::format("{}://{}:{}", scheme, address.host, port)
                              : address.text();
}

std::vector<ServedAdapter> served_adapters(const server::BaseNames& names) {
  std::vector<ServedAdapter> served;
  for (const server::BaseName& name : names.names()) {
    if (name.adapter.empty()) continue;
    served.push_back({.model = static_cast<size_t>(name.model),
                      .id = {name.snapshot_id()},
                      .dir = name.adapter});
  }
  return served;
}

// All but what requests may hold.
HostOptions host_options_of(const server::ServeOptions& options, const server::BaseNames& names,
                            int64_t memory, Comm* processes) {
  return {.dtype = options.dtype,
          .weights = options.weights,
          .context = options.context,
          .threads = static_cast<int>(options.threads),
          .stages = static_cast<int>(options.stages),
          .offload = find_usable_offload_folder(options.offload),
          .memory = memory,
          .requests = {},
          .adapters = {.max_models = options.max_adapters,
                       .max_models_per_tenant = options.max_adapters_per_tenant,
                       .max_rank = options.max_rank},
          .served = served_adapters(names),
          .expert_rank = model::parse_expert_rank(options.expert_rank),
          .draft_tokens = resolve_draft_tokens(options.speculate, options.draft_tokens),
          .prefix_cache = options.prefix_cache,
          .processes = processes,
          .layout = options.ranks.empty() ? schedule::ParallelLayout()
                                          : schedule::parse_layout(options.ranks)};
}

// The memory of a process: where none is given, its part of the machine's.
int64_t memory_of(const server::ServeOptions& options, const Comm* processes) {
  if (options.memory > 0) return options.memory;
  return read_usable_memory() / 5 * 4 / (processes == nullptr ? 1 : processes->ranks_here());
}

// With --merged, else none. The memory that it takes is added to what requests may hold.
server::ModelMerger make_merger(const server::ServeOptions& options, const server::BaseNames& names,
                                HostOptions& host_options) {
  if (!options.merged) return {};
  Merging merging = make_merging(names.directories(), options.max_rank, host_options.expert_rank);
  host_options.requests.push_back({"merging", merging.bytes});
  return std::move(merging.merger);
}

struct StopHost {
  EngineHost& host;
  ~StopHost() { host.stop(); }
};

// The running turn and the saves in line are done within `seconds`; a second signal ends the wait.
// How long what is left may take then.
double drain_scheduler(const sigset_t& signals, const scheduler::Scheduler& scheduler,
                       double seconds) {
  const double end = now_seconds() + seconds;
  while (!scheduler.idle() && now_seconds() < end) {
    const int signal = wait_for_signal(signals, kStep);
    if (signal == SIGTERM || signal == SIGINT) return kAtOnce;
  }
  return kLastSeconds;
}

std::string keys_text(const server::ServeOptions& o) {
  if (o.no_keys) return "none: this machine alone, any key that begins with tml-";
  return fmt::format("of {}", o.keys.empty() ? "STRATA_KEYS or of administrators" : o.keys);
}

// What a person does with it.
std::string use_text(const server::ServeOptions& options, const server::BaseNames& names,
                     const std::string& address, const engine::RunPlan& plan, bool verbose) {
  std::string models;
  for (const server::BaseName& name : names.names())
    models += (models.empty() ? "" : ", ") + name.name;
  report::Table table({{""}, {""}});
  if (options.listen.path.empty()) table.add_row({"page", address + "/ in a browser"});
  table.add_row({"OpenAI", address + "/v1 for its clients (the tinker package: without /v1)"});
  table.add_row({"models", models});
  table.add_row({"keys", keys_text(options)});
  table.add_row({"memory", fmt::format("{} at most{}", report::format_bytes(plan.server.budget),
                                       verbose ? "" : " (--verbose says for what)")});
  return table.text();
}

// Prints the addresses, and notifies the service manager that the server is ready.
void announce_ready(const server::ServeOptions& options, const server::BaseNames& names,
                    const server::TinkerServer& server, const EngineHost& host, bool verbose) {
  const std::string address =
      address_text(options.listen, server.port(), options.tls_cert.empty() ? "http" : "https");
  fmt::print("listening on {}\n", address);
  fmt::print("metrics on {}{}\n",
             address_text(options.metrics_listen, server.metrics_port(), "http"),
             options.metrics_listen.path.empty() ? "/metrics" : "");
  fmt::print("CPU path {}\n", describe_arithmetic_in_use());
  fmt::print("{}{}{}", options.stands_for, use_text(options, names, address, host.plan(), verbose),
             verbose ? planner::server_text(host.plan()) : "");
  std::fflush(stdout);
  notify_manager("READY=1");
}

// Says what is still finished, and notifies the service manager.
void announce_shutdown(int signal, double shutdown_timeout) {
  say_as_strata(
      fmt::format("{}: new work is refused; the running pass and queued saves are finished, for {} "
                  "at most (once more: at once)",
                  signal == SIGINT    ? "Ctrl-C"
                  : signal == SIGTERM ? "SIGTERM"
                                      : "SIGUSR2",
                  report::format_duration(shutdown_timeout)));
  notify_manager("STOPPING=1");
}

// What serves.
struct Serving {
  EngineHost& host;
  scheduler::Scheduler& scheduler;
  server::TinkerServer& server;
  report::TraceFile& trace;
};

// The engine thread may be in the middle of a long pass.
[[noreturn]] void exit_dropping_work() {
  log(LogLevel::kWarning, "serve: --shutdown-timeout is over; what was running is dropped");
  std::fflush(nullptr);
  std::_Exit(kDropped);
}

// Does what was accepted, as far as `seconds` and a second signal allow; the exit code.
int shut_down(int signal, const sigset_t& signals, double seconds, const Serving& serving) {
  auto& [host, scheduler, server, trace] = serving;
  announce_shutdown(signal, seconds);
  StopSignals::ask(signal);  // a merge ends where it is
  server.begin_shutdown();
  scheduler.begin_shutdown(now_seconds());
  const double last_seconds = drain_scheduler(signals, scheduler, seconds);
  const bool drained = scheduler.idle();
  const EndWatch watch(signals, last_seconds, kDropped);
  if (drained) host.stop();
  server.stop();  // whatever is pending fails here
  trace.finish();
  if (!drained) exit_dropping_work();
  if (scheduler.num_dropped() > 0) {
    log(LogLevel::kWarning,
        fmt::format("serve: {} accepted requests were not done any more", scheduler.num_dropped()));
    return kDropped;
  }
  say_as_strata("stopped");
  return 0;
}

// The server. `processes`: that have the stages of its models, of which this is the first; null:
// it is alone.
int serve(const server::ServeOptions& given, const sigset_t& signals, Comm* processes,
          bool verbose) {
  std::optional<LeaveWhileStarting> starting(std::in_place, signals);
  report::TraceFile trace(given.trace);
  tune_malloc_for_large_buffers();
  server::ensure_file_limit(given);
  server::ServeOptions options = given;
  const server::BaseNames names(options.models, options.aliases, options.tokenizers,
                                options.adapters);
  const int64_t memory = memory_of(options, processes);
  server::resolve_size_limits(options, memory);
  server::Budget budget(options);
  HostOptions host_options = host_options_of(options, names, memory, processes);
  if (processes != nullptr) check_processes_alike(*processes, names.directories(), host_options);
  host_options.requests = request_rows(budget);
  const server::ModelMerger merger = make_merger(options, names, host_options);
  EngineHost host(names.directories(), host_options);
  budget.of_engines = host.shared_limits();
  scheduler::Scheduler scheduler(
      {.gap_timeout = options.gap_timeout,
       .accounts = budget.accounts,
       .max_queued_operations = static_cast<size_t>(options.max_queued_operations)});
  server::TinkerServer server(
      options, names, host.bases(), load_served_texts(host, options, names), budget,
      make_dispatch(scheduler, host), [&] { return stats_of(host, scheduler); }, merger);
  host.start(scheduler, std::bind_front(&server::TinkerServer::post, &server));
  const StopHost stop_host{host};  // before `scheduler` goes, should the address be taken
  server.start();
  starting.reset();
  announce_ready(options, names, server, host, verbose);
  const int signal = handle_signals_until_end(signals, server);
  return shut_down(signal, signals, options.shutdown_timeout,
                   {.host = host, .scheduler = scheduler, .server = server, .trace = trace});
}

// Another process than the first: it has a stage of each model, and is told what to do with it.
// Signals are for the first one, which ends the others.
void follow(const server::ServeOptions& options, Comm& processes) {
  tune_malloc_for_large_buffers();
  const server::BaseNames names(options.models, options.aliases, options.tokenizers,
                                options.adapters);
  const HostOptions host_options =
      host_options_of(options, names, memory_of(options, &processes), &processes);
  check_processes_alike(processes, names.directories(), host_options);
  EngineHost(names.directories(), host_options).follow();
}

int serve_as_rank(const server::ServeOptions& options, const sigset_t& signals, Comm& comm,
                  const schedule::ParallelLayout& layout, bool verbose) {
  check_served_division(layout, options);
  if (comm.rank() == 0) return serve(options, signals, comm.size() == 1 ? nullptr : &comm, verbose);
  follow(options, comm);
  return 0;
}

}  // namespace

int run_serve(const server::ServeOptions& options, bool verbose) {
  ::umask(0077);  // what it writes is nobody else's; sockets have --socket-mode
  const sigset_t signals = block_signals();
  ignore_closed_pipes();
  if (options.ranks.empty()) {
    check_started_alone();
    return serve(options, signals, /*processes=*/nullptr, verbose);
  }
  // mpirun and srun end all with one that was killed; one that was stopped may go on.
  return run_as_rank({.ranks = options.ranks},
                     [&](Comm& comm, const schedule::ParallelLayout& layout) {
                       return serve_as_rank(options, signals, comm, layout, verbose);
                     },
                     {.waits_for_silent = true});
}

}  // namespace strata::apps
