// SPDX-License-Identifier: Apache-2.0
// WorkRunner: a model as the scheduler sees it, whole or in stages. Runs api::Work: models by name,
// training rows of many adapters in shared passes, fixed sampler weights, the running samples;
// answers with api::Result. A fault of one command is its result and touches no other. Samples are
// by the rules of the server: logprobs of softmax(logits / temperature), sample i drawn from the
// stream (seed, i), stop texts. Where other processes have stages of the model, each has a
// WorkRunner, all are given the same work (engine/turns.h), and all come to the same results.
// Engine thread only.
//   WorkRunner work_runner(stages, tokenizer, book, {});
//   results = work_runner.run(scheduler.next({runner.capacity()}, now));
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/event.h"
#include "api/result.h"
#include "api/work.h"
#include "base/clock.h"
#include "engine/adapter_book.h"
#include "engine/file_jobs.h"
#include "engine/held_copies.h"
#include "engine/sampling/sampling_loop.h"
#include "engine/sampling/snapshots.h"
#include "engine/sampling/step_planner.h"
#include "engine/stages.h"

namespace strata::engine {

struct RunnerOptions {
  api::BaseId base = {};
  int64_t max_sample_rows = 256;
  int64_t snapshot_bytes = int64_t{1} << 30;
  model::ExpertRank expert_rank = model::ExpertRank::kDivided;  // of fresh adapters
  // Pages of samples that ended stay for their tenant's next, as long as no row needs them
  // (engine/kv_cache.h). Without effect on an engine that makes drafts.
  bool prefix_cache = false;
};

class WorkRunner {
 public:
  // All are borrowed; without a tokenizer (null) stop texts are refused.
  WorkRunner(Stages& stages, const text::Tokenizer* tokenizer, AdapterBook& book,
             const RunnerOptions& options);
  // Runs a whole model.
  WorkRunner(Runner& whole, const text::Tokenizer* tokenizer, AdapterBook& book,
             const RunnerOptions& options)
      : WorkRunner(std::make_unique<Stages>(whole), tokenizer, book, options) {}

  [[nodiscard]] api::Capacity capacity() const;
  // `breaks`, if not null: what breaks in on training passes; sample() may be called from there.
  std::vector<api::Result> run(const api::Work& work, const Interruption* breaks = nullptr);
  // What of the work is sampling: samples that leave, join and run on, and one step.
  std::vector<api::Result> sample(const api::Work& work);
  // What came of the files that were asked for (files()): commands that waited for them go on, or
  // are answered. Also from `breaks`.
  std::vector<api::Result> finish_files();
  // The same of one of them.
  std::vector<api::Result> finish_file(FileJob job);
  // From `breaks`: adds to the events how far the data are that the pass is of.
  void emit_progress();
  // What happened since the last call, to be told before the results of the same turn.
  std::vector<api::Event> take_events() { return std::exchange(events_, {}); }

  // Tokens of a sampling step at most, which the first of several processes learns for all.
  [[nodiscard]] int64_t step_tokens() const { return budget_.tokens(); }
  void set_step_tokens(int64_t tokens) { budget_.set_tokens(tokens); }

  // Before any work: reads the PEFT folder `dir` as sampler weights that stay in memory. Throws
  // Error where it does not fit the model, has a rank above `max_rank`, or takes more than sampler
  // weights may.
  void load_adapter(const api::SnapshotId& id, const std::string& dir, int64_t max_rank);

  // Any thread: files that wait to be read or written by whoever may wait for a disk.
  [[nodiscard]] FileJobs& files() { return files_; }
  // Any thread: what saves have copied and is not written yet.
  [[nodiscard]] HeldCopies& copies() { return copies_; }

  [[nodiscard]] Engine& engine() { return engine_; }
  [[nodiscard]] const SnapshotCache& snapshots() const { return snapshots_; }
  [[nodiscard]] int64_t num_running() const { return loop_.num_running(); }
  [[nodiscard]] int64_t trained_tokens() const { return trained_tokens_; }
  [[nodiscard]] int64_t sampled_tokens() const { return sampled_tokens_; }
  [[nodiscard]] const SamplingLoop::Drafts& drafts() const { return loop_.drafts(); }
  [[nodiscard]] const RowBook::PrefixCounts& prefix_counts() const { return loop_.prefix_counts(); }
  // The first stage's prefix cache; null: there is none.
  [[nodiscard]] PrefixCache* prefixes() { return prefixes_.empty() ? nullptr : prefixes_[0].get(); }

 private:
  struct Partial {  // of a forward_backward whose data come in several turns
    api::ForwardBackwardResult result;
    double loss = 0.0;
  };
  struct Load {  // whose files are being read
    api::ModelId model;
    bool creates = false;
    int64_t num_bytes = 0;
  };

  WorkRunner(std::unique_ptr<Stages> own, const text::Tokenizer* tokenizer, AdapterBook& book,
             const RunnerOptions& options)
      : WorkRunner(*own, tokenizer, book, options) {
    own_ = std::move(own);
  }

  // Adds what the body takes.
  template <typename Body>
  static void timed(double& seconds, Body body) {
    const double begin = now_seconds();
    body();
    seconds += now_seconds() - begin;
  }

  // Samples (engine/work_samples.cc)
  void drop_withdrawn(const api::Work& work);
  void admit_rows(const api::Work& work, std::vector<api::Result>& results);
  void start_sample_rows(const api::SampleRows& rows, std::vector<api::Result>& results);
  [[nodiscard]] std::vector<size_t> groups_awaiting(const api::SnapshotId& weights) const;
  void finish_snapshot_read(FileJob job, std::vector<api::Result>& results);
  void check_sample(const api::Sample& sample) const;
  void open_group(const std::shared_ptr<const api::Command>& command);
  void add_sample(size_t group, int64_t index);
  [[nodiscard]] std::optional<size_t> find_group(const api::RequestId& request) const;
  // One step of all rows. A fault that is not one row's own fails every running request.
  void step_samples(std::vector<api::Result>& results);
  void handle_sampled(const SampledToken& token, std::vector<api::Result>& results);
  void emit_token(size_t row, bool ended, bool stopped);
  void end_sample(size_t row, bool stopped, std::vector<api::Result>& results);
  void drop_samples(const api::RequestId& request);
  void drop_unreachable_prefixes();
  void clear_prefixes();
  void fail_all_samples(const std::string& reason, std::vector<api::Result>& results);

  // Models and passes
  void run_control(const api::Command& command);
  // None: its answer comes when its files have been read.
  std::optional<api::Outcome> execute(const api::Command& command);
  std::optional<api::Outcome> create_model(const api::Command& command);
  api::Outcome unload_model(const api::Command& command);
  void remove_model(const api::ModelId& model);
  // The command ends with finish_load(), when the files have been read.
  void begin_load(const api::Command& command, const std::string& dir, bool optimizer);
  api::Outcome finish_load(const FileJob& job);
  void share_read_file(FileJob& job);
  void finish_write(FileJob job);
  api::Outcome save_for_sampler(const api::Command& command, const api::SaveForSampler& save);
  api::Saved hold_for_writing(const api::Command& command, AdapterCopy copy, api::Saved as,
                              const std::string& base_model_name);
  void train(const std::vector<api::DataRange>& rows, const Interruption* breaks);
  void run_rows(const std::vector<api::DataRange>& rows, const Interruption* breaks);
  // Into the batch and under_way_, but those that fail.
  void collect_rows(const std::vector<api::DataRange>& all, api::Batch& batch);
  [[nodiscard]] bool try_add_rows(const api::DataRange& rows, api::Batch& batch);
  [[nodiscard]] api::Sequence to_sequence(const api::Command& command, size_t datum) const;
  void check_data(const api::Command& command) const;
  // Adds the results of the rows that are under way, which have run.
  void add_all_results(api::BatchResult done);
  // The last of its data end the command, earlier ones are its progress.
  void report_results(const api::DataRange& rows, std::span<api::SequenceResult> results);
  void finish_forward_backward(const api::Command& command);
  [[nodiscard]] int64_t free_for_copies() const;
  [[nodiscard]] bool may_copy() const;
  [[nodiscard]] bool may_load() const;
  void abort_batch(const api::Command& command, const std::string& what);
  void fail(const api::RequestId& request, api::FaultCategory category, const std::string& what);
  [[nodiscard]] static api::Failure failure_of(const std::exception& fault);
  [[nodiscard]] api::AdapterSlot slot_of(const api::ModelId& model) const;

  std::unique_ptr<Stages> own_;  // or none
  Stages& stages_;
  Engine& engine_;  // of the first stage, as whose all of them are planned
  AdapterBook& book_;
  const RunnerOptions options_;
  HeldCopies copies_;
  FileJobs files_;
  SnapshotCache snapshots_;
  std::vector<StagedAdapter> kept_;  // of snapshots_
  const text::Tokenizer* tokenizer_;
  std::vector<std::unique_ptr<PrefixCache>> prefixes_;  // of each stage, or none
  SamplingLoop loop_;
  Preemption preemption_;
  StepBudget budget_;
  std::map<api::ModelId, api::AdapterSlot> models_;
  std::unordered_map<api::RequestId, Partial> partial_;
  std::unordered_map<api::RequestId, Load> loads_;
  std::vector<api::Result> results_;
  std::vector<api::Event> events_;
  std::vector<const api::DataRange*> under_way_;  // while passes run: whose they are
  double train_seconds_ = 0.0, sample_seconds_ = 0.0;
  int64_t trained_tokens_ = 0, sampled_tokens_ = 0;
};

}  // namespace strata::engine
