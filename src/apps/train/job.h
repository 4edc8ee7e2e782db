// TrainJob: one run of `strata train`: the engine, the batches, and the state that is saved. Made
// by setup (all checks, nothing trained yet), driven by run_train. Engine thread only.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "api/batch.h"
#include "apps/train/train.h"
#include "data/batch_plan.h"
#include "data/dataset.h"
#include "data/lr_schedule.h"
#include "engine/engine.h"

namespace strata::apps {

struct TrainStep {
  int64_t step = 0;  // 1, 2, ...
  int64_t epoch = 0;
  double loss = 0;  // nats per trained token
  double lr = 0;
  double grad_norm = 0;
  int64_t tokens = 0;
  int64_t trained_tokens = 0;
};

class TrainJob {
 public:
  TrainJob(const TrainOptions& options, std::unique_ptr<engine::Engine> engine, data::Dataset train,
           data::Dataset eval);

  [[nodiscard]] const TrainOptions& options() const { return options_; }
  [[nodiscard]] engine::Engine& engine() { return *engine_; }
  [[nodiscard]] bool is_lora() const { return options_.method == "lora"; }
  [[nodiscard]] int64_t num_steps() const { return plan_.num_steps(); }
  [[nodiscard]] int64_t steps_done() const { return steps_done_; }
  [[nodiscard]] int64_t num_trained_parameters();
  [[nodiscard]] const data::Dataset& train_data() const { return train_; }
  [[nodiscard]] const data::Dataset& eval_data() const { return eval_; }

  // One optimizer step.
  TrainStep step();
  // Nats per trained token of the held-out examples; NaN when there are none.
  double evaluate();
  // The trained flat f32 blocks, in a fixed order: values, first and second moments.
  [[nodiscard]] std::vector<TensorView> state();
  // After state() was overwritten with a saved one of that many steps.
  void restore(int64_t steps_done);
  // The adapter, or the model with the small files of its directory.
  void export_to(const std::string& dir);

 private:
  // Runs these examples in one pass, each weight times `weight`; the sum of their losses.
  double run(const std::vector<data::Example>& examples, const std::vector<int64_t>& pass,
             float weight, api::Gradients gradients);

  TrainOptions options_;
  std::unique_ptr<engine::Engine> engine_;
  data::Dataset train_;
  data::Dataset eval_;
  data::BatchPlan plan_;
  data::LrSchedule schedule_;
  api::AdapterSlot slot_ = api::AdapterSlot::kBase;
  int64_t steps_done_ = 0;
};

// Checks the options, loads model and data, and makes the job. Throws Error on any fault. Prints
// what it does to stderr.
std::unique_ptr<TrainJob> make_train_job(const TrainOptions& options);

}  // namespace strata::apps
