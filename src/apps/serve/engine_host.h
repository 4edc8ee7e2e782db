// SPDX-License-Identifier: Apache-2.0
// EngineHost: the engines of a server and the thread that runs them. The loop is three calls: what
// is next, run it, post what came of it. That thread opens no file: what the engines want read or
// written others do. While training passes run, sampling breaks in on them for
// as much time as it leaves them, so that a sample need not wait for the end of a pass.
//   EngineHost host(directories, options);  host.start(scheduler, post);  ...  host.stop();
// Where several processes have a part of each model, the first one's thread tells the others what
// it does (engine/turns.h), which have no scheduler: they follow().
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/event.h"
#include "backend/comm.h"
#include "engine/turns.h"
#include "engine/work_runner.h"
#include "planner/planner.h"
#include "schedule/parallel_layout.h"
#include "scheduler/scheduler.h"
#include "server/tinker/service/dispatch.h"

namespace strata::apps {

struct ServedAdapter {
  size_t model = 0;  // of the directories
  api::SnapshotId id;
  std::string dir;
};

struct HostOptions {
  std::string dtype = "auto";
  std::string weights = "auto";
  int64_t context = 0;  // of each model: positions of a sequence, at most; 0: the model's
  int threads = 0;
  int stages = 1;       // that each model is divided into, each with its part of threads
  std::string offload;  // folder for activations of long data; empty: none is offloaded
  int64_t memory = 0;   // bytes
  std::vector<engine::PlanRow> requests;   // of them
  engine::AdapterLimits adapters;          // max_bytes is the plan's
  std::vector<ServedAdapter> served = {};  // that nobody trains
  int64_t max_sample_rows = 256;
  model::ExpertRank expert_rank = model::ExpertRank::kDivided;
  int64_t draft_tokens = 0;  // by multi-token prediction: of the models that have it, one at least
  bool prefix_cache = true;  // of the models whose samples are not drafted
  // That have a part of each model, with threads and memory of their own, and how they divide it;
  // null: this one is alone.
  Comm* processes = nullptr;
  schedule::ParallelLayout layout = {};
};

class EngineHost {
 public:
  // Loads a model from each directory, in order, and plans memory. Throws Error before any work if
  // something does not fit.
  EngineHost(const std::vector<std::string>& directories, const HostOptions& options);
  ~EngineHost();
  EngineHost(const EngineHost&) = delete;
  EngineHost& operator=(const EngineHost&) = delete;

  [[nodiscard]] const std::vector<api::BaseInfo>& bases() const { return bases_; }
  [[nodiscard]] const engine::RunPlan& plan() const { return plan_; }
  // Positions that the cache has for one sample.
  [[nodiscard]] int64_t longest_sample(api::BaseId base) const {
    const auto index = static_cast<size_t>(base);
    const engine::KvPool& pool = engines_[index].stages->engine().kv_pool();
    return pool.need().longest(plan_.server.max_pages[index]);
  }
  [[nodiscard]] const ModelTexts& texts(api::BaseId base) const {
    return engines_.at(static_cast<size_t>(base)).texts;
  }
  // Null: the model has none.
  [[nodiscard]] const text::Tokenizer* tokenizer(api::BaseId base) const {
    const Base& of = engines_.at(static_cast<size_t>(base));
    return of.tokenizer ? &*of.tokenizer : nullptr;
  }

  // What tenants share of the adapters (engine/adapter_book.h).
  [[nodiscard]] std::vector<SharedLimit> shared_limits() const { return book_->limits(); }
  // Any thread: bytes of the parameters of such an adapter, as a file holds them.
  [[nodiscard]] int64_t parameter_bytes(api::BaseId base, const api::LoraConfig& lora) const;

  // What happens to requests goes to `post`, on the engine thread.
  void start(scheduler::Scheduler& scheduler, std::function<void(std::vector<api::Event>)> post);
  // Any thread: writes what a save has copied, or lets it go. Bytes of its files.
  int64_t write_saved(const api::RequestId& request) const;
  void drop_saved(const api::RequestId& request) const;
  // Ends the loop after the turn that is running.
  void stop();
  // In place of start() where another process leads: does what that one does, until it stops.
  void follow();
  // Any thread: of which process nothing is heard, since when; or empty.
  [[nodiscard]] std::string find_silent_process() const {
    return processes_ == nullptr ? "" : processes_->find_silent_rank();
  }

  struct Counts {  // any thread
    int64_t trained_tokens = 0;
    int64_t sampled_tokens = 0;
    int64_t drafts_read = 0, drafts_accepted = 0;
    int64_t prompt_tokens = 0, cached_tokens = 0;  // looked for in the prefix cache, and found
    int64_t train_passes = 0;
    int64_t batch_tokens = 0;  // of the last turn with training rows
    int64_t running_samples = 0;
    int64_t adapters = 0;
    int64_t adapter_bytes = 0;
    int64_t snapshot_bytes = 0;
    int64_t kv_bytes = 0;       // allocated
    int64_t state_bytes = 0;    // likewise
    int64_t prefix_bytes = 0;   // of the pages that no row holds, and of those that some do
    double turn_seconds = 0.0;  // of the turn that is running; 0: none is
  };
  [[nodiscard]] Counts counts() const;

 private:
  struct Base {
    ModelTexts texts;
    std::unique_ptr<engine::Stages> stages = nullptr;
    // Where other processes have stages: the whole, which can only plan.
    std::unique_ptr<engine::Engine> whole = nullptr;
    std::optional<text::Tokenizer> tokenizer = {};
    std::unique_ptr<engine::WorkRunner> runner = nullptr;
  };
  void load_base(const std::string& dir, const HostOptions& options);
  // The least that any process has.
  void agree_on_limits();
  // How the memory that is left is divided. Error where it is too little.
  [[nodiscard]] engine::RunPlan plan_serving(const HostOptions& options) const;
  void check_speculate_option(const HostOptions& options) const;
  // As the plan says.
  void apply_plan_to_models();
  void make_runners(const HostOptions& options);
  void run_until_stopped();
  void run_leading_others();
  [[noreturn]] void end_all_processes(ErrorCode code, const std::string& what);
  std::vector<api::Result> run_turn(const api::Work& work);
  std::vector<api::Result> run_with_breaks(const api::Work& work);
  std::vector<api::Result> run_catching_errors(
      const api::Work& work, FunctionRef<std::vector<api::Result>(engine::WorkRunner&)> body);
  void run_file_jobs(engine::FileJobs& files);
  // Completes the file jobs that have ended, and posts their results.
  void post_file_results();
  void post_events_and_results(std::vector<api::Result> results);
  [[nodiscard]] bool poll_for_break();
  void emit_progress();
  void run_sampling_steps();
  void take_break();
  void run_break(double begin);
  // What the engines hold, as far as such work changes it, for counts().
  void update_counts(const api::Work& work);
  void update_runner_counts();
  void update_training_counts(const api::Work& work);
  void update_adapter_counts();
  void update_cache_counts();

  Comm* const processes_ = nullptr;
  std::vector<Base> engines_;
  std::vector<api::BaseInfo> bases_;
  engine::RunPlan plan_;
  model::ExpertRank expert_rank_ = model::ExpertRank::kDivided;
  std::unique_ptr<engine::AdapterBook> book_;
  std::optional<engine::TurnLeader> turns_;  // of the first of several processes
  scheduler::Scheduler* scheduler_ = nullptr;
  std::function<void(std::vector<api::Event>)> post_;
  double next_look_ = 0.0;  // for samples, in a training pass
  double next_told_ = 0.0;  // how far that is
  std::atomic<bool> stopping_ = false;
  std::atomic<double> turn_began_ = 0.0;  // now_seconds(), or 0
  std::atomic<int64_t> trained_tokens_ = 0, sampled_tokens_ = 0, train_passes_ = 0,
                       batch_tokens_ = 0, running_samples_ = 0, adapters_ = 0, adapter_bytes_ = 0,
                       snapshot_bytes_ = 0, kv_bytes_ = 0, drafts_read_ = 0, drafts_accepted_ = 0,
                       prompt_tokens_ = 0, cached_tokens_ = 0, prefix_bytes_ = 0, state_bytes_ = 0;
  std::jthread thread_;
  std::vector<std::jthread> file_threads_;  // that may wait for a disk
};

// What the server calls for a command, a session's end or a sampler's: the scheduler. Borrows both.
server::Dispatch make_dispatch(scheduler::Scheduler& scheduler, const EngineHost& host);

}  // namespace strata::apps
