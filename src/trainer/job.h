// SPDX-License-Identifier: Apache-2.0
// TrainJob: one run of `strata train`, as one of its ranks runs it: the pipeline, the batches, and
// the state that is saved. Made by setup (all checks, nothing trained yet), driven by run_train.
// What is marked collective is called by all ranks together. Engine thread of its rank only.
#pragma once
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/batch.h"
#include "base/function_ref.h"
#include "data/batch_plan.h"
#include "data/dataset.h"
#include "data/lr_schedule.h"
#include "engine/plan/run_plan.h"
#include "engine/runner.h"
#include "model/adapter/specs.h"
#include "setup/pair_scoring.h"
#include "trainer/cadence.h"
#include "trainer/rollouts.h"
#include "trainer/settings.h"

namespace strata::apps {

// What came of the answers of a step.
struct RewardNumbers {
  double mean = 0, deviation = 0;  // of all rewards
  double share_equal = 0;          // of groups, whose rewards are equal and teach nothing
  int64_t omitted = 0;             // answers without a reward
  double share_cut = 0;            // of answers, which --max-tokens cut
  int64_t sampled_tokens = 0;
  double mean_length = 0;  // tokens of an answer
  // The trainer's probability of a trained token over the sampled one, before the first
  // update. Both are exactly 1.
  double least_ratio = std::numeric_limits<double>::infinity(), most_ratio = 0;
  double sampling_seconds = 0, reward_seconds = 0, training_seconds = 0;
};

struct TrainStep {
  int64_t step = 0;  // 1, 2, ...
  int64_t epoch = 0;
  double loss = 0;                      // nats per trained token, or of pairs the mean of theirs
  std::optional<PairScore> pairs = {};  // their rewards
  std::optional<RewardNumbers> rewards = {};
  std::optional<double> mtp_loss = {};      // likewise, of multi-token prediction
  std::optional<double> indexer_loss = {};  // nats per token and layer with an indexer
  double lr = 0;
  double grad_norm = 0;
  int64_t examples = 0;
  int64_t tokens = 0;
  int64_t trained_tokens = 0;
  int64_t mtp_tokens = 0;  // trained by multi-token prediction
  int64_t own_tokens = 0;  // of orpo: of chosen answers and their prompts
};

// How the data are cut into steps and passes.
data::BatchPlanOptions batch_plan_options(const TrainSettings& settings);
int64_t num_steps(const TrainSettings& settings, const data::Dataset& train);

// The modules of the adapter that trains: a fresh one's, or those of --adapter.
std::vector<model::LoraModuleSpec> lora_modules_of(const TrainSettings& settings,
                                                   const model::ModelConfig& config);

// How all parameters are stepped, where they train.
train::BaseStep base_step_of(const TrainOptions& options);
// Whether a fresh adapter adapts indexers.
model::WithIndexers with_indexers(const TrainOptions& options);

struct TrainData {
  data::Dataset train;
  data::Dataset eval;  // of the evaluation
};

struct StateBlock {
  std::string name;
  int64_t size = 0;
};

// Values [first, first + its size) of a block of the state, which has `size`, where a stage has
// them.
struct StatePart {
  std::string block;
  int64_t size = 0;
  int64_t first = 0;
  TensorView values;
};

// What loads, and what it will run.
struct TrainRun {
  LoadSpec spec;
  engine::RunPlan plan;
  int64_t sample_rows = 0;  // answers that are sampled at once, of a run on rewards
};

class TrainJob {
 public:
  // Borrows the data. Jobs of one pipeline, which is not divided, take turns step by step; each has
  // an adapter of its own, with the gradients of the first one's, `turns_with`.
  TrainJob(const TrainSettings& settings, const TrainRun& run,
           std::shared_ptr<engine::Runner> pipeline, const TrainData& data,
           const TrainJob* turns_with = nullptr);

  [[nodiscard]] const TrainSettings& settings() const { return settings_; }
  [[nodiscard]] const TrainOptions& options() const { return settings_.options; }
  [[nodiscard]] const LoadSpec& spec() const { return spec_; }
  // The rank's first stage; the whole model where it is not divided.
  [[nodiscard]] engine::Engine& engine() { return pipeline_->engine(); }
  [[nodiscard]] const engine::PipelinePlan& stages() const { return pipeline_->plan(); }
  [[nodiscard]] bool is_divided() const {
    return stages().num_ranks_in_all() > 1 || !stages().is_whole();
  }
  [[nodiscard]] engine::Runner& pipeline() { return *pipeline_; }
  // Which prints and writes.
  [[nodiscard]] bool is_first_rank() const { return pipeline_->is_first_rank(); }
  [[nodiscard]] bool is_lora() const { return options().method == "lora"; }
  // The weight of multi-token prediction's loss; 0: it takes no part.
  [[nodiscard]] double mtp_weight() const;
  [[nodiscard]] int64_t num_steps() const { return plan_.num_steps(); }
  [[nodiscard]] int64_t steps_done() const { return steps_done_; }
  [[nodiscard]] int64_t num_trained_parameters();
  [[nodiscard]] const data::Dataset& train_data() const { return data_.train; }
  [[nodiscard]] const data::Dataset& eval_data() const { return data_.eval; }
  [[nodiscard]] Evaluations& evaluations() { return evaluations_; }
  // The adapter that trains; kBase where all parameters do.
  [[nodiscard]] api::AdapterSlot slot() const { return slot_; }

  // What this rank has sent to others in the steps that it has made; and what each was planned to
  // send, which the first rank knows, in those and in the next one.
  [[nodiscard]] const engine::SentBytes& sent() const { return sent_; }
  // Whether this rank plans what all send: the first one, or all where they have parts of a stage's
  // weights.
  [[nodiscard]] bool plans_sends() const {
    return is_divided() && (is_first_rank() || stages().num_alike() > 1);
  }
  [[nodiscard]] const std::vector<engine::SentBytes>& planned_sent() const { return planned_; }
  [[nodiscard]] std::vector<engine::SentBytes> plan_sent_of_next_step();

  // One optimizer step. Collective.
  TrainStep step();
  // Finds what the reference model gives the answers of pairs: that model is what trains as it is
  // before the first step. The sums are kept in --out, where a run that goes on reads them.
  // Before the first step or evaluation; the first rank's fingerprint counts. Collective. Nothing
  // with --reference recompute.
  void find_references(const std::string& fingerprint);
  // Makes what samples and rates in a run on rewards, before its first step or evaluation.
  void prepare_rollouts(const Rollouts::Limits& limits);
  // Nats per trained token of the evaluation examples, of pairs the mean of their losses, of
  // prompts the mean reward of an answer, less than nothing: the lowest is the best. NaN when there
  // are none. Collective.
  double evaluate();
  // The score of the last evaluation of pairs.
  [[nodiscard]] const std::optional<PairScore>& evaluated_pairs() const { return eval_pairs_; }
  // The first rank's value, on every one. Collective.
  double broadcast_from_first_rank(double value);
  // The trained flat f32 blocks, in a fixed order: values, first and second moments; and routers'
  // biases that follow loads.
  [[nodiscard]] std::vector<StateBlock> blocks_of_state();
  // Gives the first rank their values, block by block, a piece at a time. Collective.
  using TakeBlock = FunctionRef<void(const std::string& block, TensorView values)>;
  void gather_state(TakeBlock take);
  // Where the stages of this rank have what they hold of it, and how long its first three are.
  [[nodiscard]] std::vector<StatePart> parts_of_state();
  [[nodiscard]] std::vector<int64_t> sizes_of_flat_blocks();
  // After those parts were overwritten with a saved state of that many steps.
  void restore_progress(int64_t steps_done, const Evaluations& evaluations);
  // The adapter, or the model with the small files of its directory. Collective; the first rank
  // writes.
  void export_to(const std::string& dir);

 private:
  using Pass = std::vector<int64_t>;  // examples
  // Sums of losses.
  struct Losses {
    double decoder = 0;
    double mtp = 0;
    double indexer = 0;
    Losses& operator+=(const Losses& other) {
      decoder += other.decoder;
      mtp += other.mtp;
      indexer += other.indexer;
      return *this;
    }
  };
  // What losses weigh in a step's gradients: one over the number of trained tokens or pairs, of
  // chosen answers' and their prompts' tokens (orpo), and of all tokens (indexers).
  struct Weights {
    float trained = 1.0f;
    std::optional<float> own = {};
    float indexer = 0.0f;
  };
  // Runs these examples, each weight times that of the step; multi-token prediction where they take
  // gradients, and what they are planned to send is then added to the plan's.
  api::BatchResult run_examples(const data::Examples& examples, const Pass& pass,
                                const Weights& weights, api::Gradients gradients);
  // Examples as a batch has them, in order, of pairs both answers; weights times the step's.
  [[nodiscard]] std::vector<api::Datum> read_scaled_data(const data::Examples& examples,
                                                         const Pass& pass,
                                                         const Weights& weights) const;
  // As many tokens each, which are all zero.
  std::vector<api::Datum> read_blank_data_of_next_step();
  void add_planned_sent(const api::Batch& batch);
  // The sums of the losses of a step's passes, each of which is summed alone. Stages run all of
  // them as one batch, which they divide themselves.
  Losses run_passes(const std::vector<Pass>& passes, const Weights& weights);
  // With --reference recompute: makes what it gives these pairs, and forgets what it gave others.
  void recompute_references(const data::Examples& pairs);
  TrainStep step_on_rewards();
  double evaluate_on_rewards();
  // Whose number, of all that were made, is `number`; the norm of its gradient.
  double run_optimizer_step(double lr, int64_t number);
  // Optimizer steps of a step.
  [[nodiscard]] int64_t num_updates() const {
    return options().loss.of_rewards() ? options().rollouts.updates : 1;
  }
  static Losses sum_losses(std::span<const api::SequenceResult> results);
  [[nodiscard]] bool of_pairs() const { return options().loss.of_pairs(); }
  Losses run_as_one_batch(const std::vector<Pass>& passes, const Weights& weights,
                          api::Gradients gradients);
  // All but what running the step says.
  [[nodiscard]] TrainStep make_step_record(const data::StepPlan& plan) const;
  [[nodiscard]] Weights loss_weights_of(const TrainStep& step) const;
  // As the sums of its losses say.
  void set_losses(const Losses& losses, TrainStep& done);
  void gather_adapter_state(TakeBlock take);
  void gather_base_state(TakeBlock take);  // all of its flat blocks
  void export_adapter(const std::string& dir);
  void export_model(const std::string& dir);
  void read_buffer(size_t index, const std::map<size_t, TensorView>& moved, TensorView rows);
  // The bias of a router, which follows loads; gathered on the first rank.
  TensorView gather_router_bias(size_t index);
  [[nodiscard]] std::vector<size_t> router_bias_indices();

  TrainSettings settings_;
  LoadSpec spec_;
  std::shared_ptr<engine::Runner> pipeline_;
  const TrainData& data_;
  data::BatchPlan plan_;
  data::LrSchedule schedule_;
  api::AdapterSlot slot_ = api::AdapterSlot::kBase;
  int64_t steps_done_ = 0;
  Evaluations evaluations_;
  References references_;  // of pairs
  // Whose weights are the start's, with --reference recompute. A fresh adapter changes nothing, so
  // that its start is the base.
  api::AdapterSlot reference_slot_ = api::AdapterSlot::kBase;
  PairScore step_pairs_;  // of the step that runs
  std::optional<PairScore> eval_pairs_;
  std::unique_ptr<Rollouts> rollouts_;  // of a run on rewards
  engine::SentBytes sent_;
  std::vector<engine::SentBytes> planned_;                // of each rank
  std::vector<double> of_ranks_;                          // reused
  std::map<size_t, std::vector<float>> gathered_biases_;  // by their place in the table
};

// Checks what the options say together, and says it as values. Throws Error.
LoadSpec read_train_spec(const TrainOptions& options);
// Reads the data. Throws Error on any fault. Prints what it does to stderr.
TrainData read_train_data(const TrainOptions& options, const LoadSpec& spec);
// What the run's first step is, in a division of a model with such a config.
planner::RunShape shape_of_first_step(const LoadSpec& spec, const TrainSettings& settings,
                                      const model::ModelConfig& config,
                                      const planner::Division& division, const TrainData& data);
// All checks of how a run is divided, and what --memory makes of it. `ranks_here`: that share this
// machine's threads where they are processes.
TrainRun plan_train_run(const LoadSpec& spec, const TrainSettings& settings, const TrainData& data,
                        int ranks_here = 1);
// Loads what this rank has of the model. Borrows all it is given.
std::shared_ptr<engine::Runner> load_train_model(Comm& comm, const TrainRun& run,
                                                 const TrainSettings& settings,
                                                 const TrainData& data);
// The same with a job of it alone.
std::unique_ptr<TrainJob> load_train_job(Comm& comm, const TrainRun& run,
                                         const TrainSettings& settings, const TrainData& data);

}  // namespace strata::apps
