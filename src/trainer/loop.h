// SPDX-License-Identifier: Apache-2.0
// TrainLoop: the steps of a run with its log, saves and evaluations, until the last one, a signal
// or --early-stop. Every rank runs it; the first one logs, prints, and says when to stop or save.
#pragma once
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/process_memory.h"
#include "report/event_file.h"
#include "report/metrics_log.h"
#include "report/progress.h"
#include "report/table.h"
#include "setup/sent_text.h"
#include "trainer/cadence.h"
#include "trainer/job.h"
#include "trainer/model_card.h"
#include "trainer/sampler.h"
#include "trainer/verdict.h"

namespace strata::apps {

// What was said before the first step, to be compared with what was.
struct Predicted {
  std::vector<int64_t> memory = {};  // of each rank, in bytes
  double step_seconds = 0;
  [[nodiscard]] int64_t memory_in_all() const {
    return std::accumulate(memory.begin(), memory.end(), int64_t{0});
  }
};

std::string metrics_path(const std::string& out);

// Means over pairs: what TRL logs as rewards/chosen, rewards/rejected, rewards/margins and
// rewards/accuracies.
struct PairNumbers {
  double chosen = 0, rejected = 0, margin = 0, accuracy = 0;
  // And of orpo as nll_loss and log_odds_ratio, the mean of log sigmoid of the difference of both
  // answers' log odds.
  std::optional<double> nll = {}, log_odds_ratio = {};
};

class TrainLoop {
 public:
  // `shows` progress of its own; `sampler` may be null.
  TrainLoop(TrainJob& job, std::string fingerprint, const std::optional<Predicted>& predicted,
            TrainSampler* sampler = nullptr, bool shows = true);

  // False where a signal stopped it; it has then said what is saved.
  bool run();
  // The same in pieces, for runs that take turns: start(), run_next_step() by a step until
  // is_done(), finish_run().
  void start();
  [[nodiscard]] bool is_done() const;
  void run_next_step();
  // Saves what was trained and ends the progress; false where a signal stopped the run.
  bool finish_run();
  // Ends it as a signal does.
  void request_stop() { stops_ = true; }
  void print_summary() const;
  // The page of --report, where it is asked for.
  void write_report() const;
  [[nodiscard]] double loss() const { return loss_; }
  [[nodiscard]] const std::optional<double>& first_eval() const { return first_eval_; }
  [[nodiscard]] const std::optional<double>& last_eval() const { return last_eval_; }
  // How the loss went in the run so far.
  [[nodiscard]] LossCourse loss_course() const;

 private:
  // What the first rank wants after a step.
  enum class NextAction { kNone, kSave, kStop };

  void open_logs();
  TrainStep make_step();  // and saves what was done before, where nothing gives rewards
  void run_logged_step();
  void note_for_summary(const TrainStep& done, double seconds);
  void log_step(const TrainStep& done, double seconds);
  // Samples, evaluates, and keeps what is the best by then, but with --keep-best=off.
  void run_evaluation(int64_t step);
  void log_evaluation(int64_t step, double loss);
  // Samples the run's prompts, and logs the answers.
  void log_samples(int64_t step);
  void export_with_card(const std::string& dir);
  [[nodiscard]] bool keeps_best() const;        // of what is evaluated
  [[nodiscard]] bool ends_early() const;        // by --early-stop
  [[nodiscard]] NextAction due_action() const;  // by the clock and the signals of this process
  // The first rank's, on every rank.
  NextAction decide_next_action();
  void sync_logs();
  void save_checkpoint(bool keeps_folder);  // and a folder of it, with --keep
  void save_at_stop();
  // The model card next to an export. The first rank writes.
  void write_card(const std::string& dir) const;
  // A pass's memory stays with the process until the run ends, so that nothing is missed between.
  void update_peak_memory();
  // Where ranks are processes, the peak of all together, and what each has sent. Collective.
  void gather_costs_of_ranks();
  std::vector<ProcessMemory> gather_peaks();
  // All that the process took, on its first rank; the weights that it shares, on another.
  ProcessMemory peak_of_rank();
  void sum_peaks_by_process(const std::vector<ProcessMemory>& of_ranks);
  // What a resumed run's summary needs of the part before it.
  void restore_losses_from_log();
  [[nodiscard]] double step_seconds() const;
  [[nodiscard]] double tokens_per_second() const;
  [[nodiscard]] std::string progress_text() const;
  void add_loss_rows(report::Table& table) const;
  void add_pair_rows(report::Table& table) const;    // instead, of pairs
  void add_reward_rows(report::Table& table) const;  // and of a run on rewards
  // Where it is not the last evaluation's, or in best/.
  void add_best_row(report::Table& table) const;
  void add_sent_row(report::Table& table) const;
  void add_cost_rows(report::Table& table) const;
  void print_json() const;
  // What is wrong with how the run went; empty: nothing.
  [[nodiscard]] std::string verdict() const;

  TrainJob& job_;
  TrainSampler* sampler_;
  bool shows_;
  bool stops_ = false;
  std::optional<Predicted> predicted_;
  ProcessMemory peak_ = read_process_memory();     // of all ranks once the run has ended
  std::vector<std::optional<RankMemory>> memory_;  // then of each process, at its first rank
  std::vector<engine::SentBytes> sent_;            // by each rank; empty where they are threads
  int64_t num_steps_ = 0;                          // of this process
  std::string fingerprint_;
  SaveEvery save_every_;
  double begin_;
  double last_save_;
  // What the first rank writes.
  std::optional<report::MetricsLog> log_;
  std::optional<report::MetricsLog> samples_;
  std::optional<report::EventFile> events_;
  std::optional<report::Progress> progress_;
  std::optional<CardFacts> card_;
  double busy_seconds_ = 0;
  int64_t tokens_ = 0;
  double loss_ = 0;
  std::optional<double> mtp_loss_;
  std::optional<double> indexer_loss_;
  std::optional<double> first_eval_;
  std::optional<double> last_eval_;
  // Numbers of pairs: those of the last step, of the first evaluation and of the last.
  std::optional<PairNumbers> pairs_, first_eval_pairs_, last_eval_pairs_;
  std::optional<RewardNumbers> rewards_;  // of the last step
  // What all steps of this process took and left out.
  struct RewardTotals {
    int64_t omitted = 0;
    double sampling_seconds = 0, reward_seconds = 0, training_seconds = 0;
  } reward_totals_;
};

}  // namespace strata::apps
