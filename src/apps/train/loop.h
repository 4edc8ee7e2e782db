// TrainLoop: the steps of a run with its log, saves and evaluations. Every rank runs it, and the
// first one logs and prints.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "apps/train/job.h"
#include "apps/train/model_card.h"
#include "base/process_memory.h"
#include "report/metrics_log.h"
#include "report/progress.h"

namespace strata::apps {

// What was said before the first step, to be compared with what was.
struct Predicted {
  int64_t memory = 0;
  double step_seconds = 0;
};

std::string metrics_path(const TrainOptions& options);

class TrainLoop {
 public:
  TrainLoop(TrainJob& job, std::string fingerprint, const std::optional<Predicted>& predicted);

  void run();
  void print_summary() const;

 private:
  void train_step();
  void evaluate(int64_t step);
  void save();
  // A pass's memory stays with the process until the run ends, so that nothing is missed between.
  void note_memory();
  // What a resumed run's summary needs of the part before it.
  void read_back();
  [[nodiscard]] double tokens_per_second() const;
  [[nodiscard]] std::string note() const;

  TrainJob& job_;
  std::optional<Predicted> predicted_;
  ProcessMemory peak_ = process_memory();
  int64_t num_steps_ = 0;  // of this process
  std::string fingerprint_;
  // Of the first rank.
  std::optional<report::MetricsLog> log_;
  std::optional<report::Progress> progress_;
  std::optional<CardFacts> card_;
  double begin_;
  double busy_seconds_ = 0;
  int64_t tokens_ = 0;
  double loss_ = 0;
  std::optional<double> mtp_loss_;
  std::optional<double> indexer_loss_;
  std::optional<double> first_eval_;
  std::optional<double> last_eval_;
};

}  // namespace strata::apps
