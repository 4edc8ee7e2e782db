// SPDX-License-Identifier: Apache-2.0
#include "engine/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "engine/pipeline/owners.h"
#include "model/weights/weight_shards.h"
#include "ops/elementwise.h"
#include "train/optimizer.h"

namespace strata::engine {
namespace {

bool is_of_forward(schedule::Op op) {
  return op == schedule::Op::kForward || op == schedule::Op::kSendForward ||
         op == schedule::Op::kRecvForward;
}

// Of messages between ranks that deal micro-batches out, and of weights that they divide; those of
// pipelines are below. MPI's tags may end at 2^23 (pml_ucx of Open MPI 4), and several ranks of a
// process divide them.
constexpr int64_t kDataTag = 1 << 18, kWeightTag = 3 << 17, kEndOfTags = 1 << 19;
constexpr int64_t kTagsBehindGather = 16;

// Behind the pipeline's tags of what it gathers: those of samples, and of what two stages hold of
// one matrix.
constexpr int64_t kStateTag = 2, kNewsTag = 3;

std::function<Sent(int64_t)> make_tag_classifier(const PipelinePlan& plan) {
  return [end = plan.gather_tag()](int64_t tag) {
    if (tag < end) return tag % 2 == 0 ? Sent::kActivations : Sent::kActivationGradients;
    if (tag - end == kStateTag) return Sent::kActivations;
    if (tag - end == kLentTag) return Sent::kParameters;
    const bool is_gradient = tag - end == kSwapTag || tag - end == kBorrowedTag;
    return is_gradient ? Sent::kGradients : Sent::kResults;
  };
}

std::optional<GroupComm> make_pipeline_group(Comm& all, const PipelinePlan& plan) {
  if (plan.data == 1) return {};
  return std::optional<GroupComm>(
      std::in_place, all,
      RankGroup{.first = all.rank() % plan.data, .stride = plan.data, .size = plan.num_ranks()});
}

std::optional<GroupComm> make_data_group(Comm& all, const PipelinePlan& plan, int64_t first_tag) {
  if (plan.data == 1) return {};
  return std::optional<GroupComm>(
      std::in_place, all,
      RankGroup{
          .first = all.rank() / plan.data * plan.data, .size = plan.data, .first_tag = first_tag});
}

Sent kind_of_data_tag(int64_t tag) {
  if (tag >= kFirstChainTag) return Sent::kGradients;
  if (tag == kParameterTag) return Sent::kParameters;
  return tag == kLossTag ? Sent::kResults : Sent::kControl;
}

std::optional<CountedComm> make_counted_data_comm(std::optional<GroupComm>& group) {
  if (!group) return {};
  return std::optional<CountedComm>(std::in_place, *group, kind_of_data_tag);
}

void check_tags(const Comm& all, const PipelinePlan& plan) {
  const int64_t of_pipeline = plan.gather_tag() + kTagsBehindGather;
  if (plan.data > 1 && of_pipeline > kDataTag) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("ranks: {} stages of {} micro-batches have more messages than ranks "
                            "that deal them out can tell apart; want a product of at most {}",
                            plan.num_stages(), plan.table.num_microbatches,
                            (kDataTag - kTagsBehindGather) / 2));
  }
  const int64_t end = plan.data > 1 ? kEndOfTags : of_pipeline;
  if (end <= all.end_of_tags()) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("ranks: {} tags of messages are needed, and MPI's transport has {} for "
                          "them; start more processes, each with fewer --stages",
                          end, all.end_of_tags()));
}

bool wants_final_hidden(const api::Batch& batch, const model::ModelConfig& config) {
  return batch.want_hidden_states && config.streams;
}

bool wants_mtp_logits(const api::Batch& batch) {
  return batch.want_logits && batch.mtp_weight > 0.0f;
}

// In the order of the sequences, and of each one's values.
void sum_losses(api::BatchResult& result) {
  for (const api::SequenceResult& sequence : result.sequences) {
    for (const float loss : sequence.losses) result.loss_sum += static_cast<double>(loss);
    for (const float loss : sequence.mtp_losses) result.mtp_loss_sum += static_cast<double>(loss);
    for (const float loss : sequence.indexer_losses)
      result.indexer_loss_sum += static_cast<double>(loss);
  }
}

// Nothing is in flight behind a batch, however it ended.
struct Ending {
  std::vector<std::unique_ptr<StageRunner>>& runners;
  ~Ending() {
    for (const auto& runner : runners) runner->end_batch();
  }
};

// Of sequences [first, last), a backward counted as two forwards.
double weighed_tokens(const api::Batch& batch, size_t first, size_t last) {
  double tokens = 0.0;
  for (size_t s = first; s < last; ++s) {
    const api::Sequence& sequence = batch.sequences[s];
    const bool backward =
        batch.want_loss && batch.gradients != api::Gradients::kNone && sequence.gradients;
    tokens += static_cast<double>(sequence.datum->tokens.size()) * (backward ? 3.0 : 1.0);
  }
  return tokens;
}

}  // namespace

Runner::Runner(Engine& whole)
    : own_plan_(make_whole_plan(whole.config().num_layers())),
      all_(alone_),
      plan_(own_plan_),
      comm_(alone_, make_tag_classifier(plan_)),
      everyone_(alone_, make_tag_classifier(plan_)) {
  add_stage(0, whole);
}

Runner::Runner(Comm& comm, const PipelinePlan& plan, std::vector<std::unique_ptr<Engine>> engines)
    : all_(comm),
      plan_(plan),
      pipeline_(make_pipeline_group(comm, plan)),
      data_group_(make_data_group(comm, plan, kDataTag)),
      weights_group_(make_data_group(comm, plan, kWeightTag)),
      comm_(pipeline_ ? *pipeline_ : comm, make_tag_classifier(plan)),
      data_(make_counted_data_comm(data_group_)),
      everyone_(comm, make_tag_classifier(plan)),
      engines_(std::move(engines)) {
  CHECK(plan.data == 1 || !plan.any_length, plan.data);
  check_tags(comm, plan);
  const std::vector<int> stages = plan.stages_of(comm_.rank());
  CHECK(!stages.empty() && stages.size() == engines_.size(), stages.size(), engines_.size());
  for (size_t i = 0; i < stages.size(); ++i) add_stage(stages[i], *engines_[i]);
}

Runner::Runner(Comm& comm, const PipelinePlan& plan, Engine& stage)
    : all_(comm),
      plan_(plan),
      comm_(comm, make_tag_classifier(plan)),
      everyone_(comm, make_tag_classifier(plan)) {
  CHECK(plan.data == 1, plan.data);
  const std::vector<int> stages = plan.stages_of(comm.rank());
  CHECK(stages.size() == 1, stages.size());
  add_stage(stages[0], stage);
}

void Runner::add_stage(int stage, Engine& engine) {
  CHECK(engine.model().weights->part() == plan_.layers[static_cast<size_t>(stage)], stage);
  if (runners_.empty()) first_stage_ = stage;
  if (model::WeightShards* shards = engine.model().weights->shards()) {
    CHECK(weights_group_, stage);
    shards->memory().trim_and_connect(*weights_group_, int64_t{2} * stage);
  }
  if (data_) engine.set_share({data_->rank(), data_->size()});
  // In a pipeline who waits for a stage may keep others waiting, and it for them.
  if (data_)
    chains_.push_back(std::make_unique<GradientChain>(*data_, engine, plan_.num_stages() == 1));
  runners_.push_back(std::make_unique<StageRunner>(comm_, plan_, stage, engine,
                                                   data_ ? chains_.back().get() : nullptr));
}

StageRunner* Runner::stage_here(int stage) {
  const auto found = std::find_if(runners_.begin(), runners_.end(),
                                  [&](const auto& runner) { return runner->stage() == stage; });
  return found == runners_.end() ? nullptr : found->get();
}

int64_t Runner::shared_weight_bytes() const {
  int64_t bytes = 0;
  for (const auto& runner : runners_) bytes += runner->engine().model().weights->shared_bytes();
  return bytes;
}

SentBytes Runner::sent() const {
  SentBytes sent = comm_.sent();
  sent += everyone_.sent();
  if (data_) sent += data_->sent();
  for (const auto& runner : runners_) {
    const model::WeightShards* shards = runner->engine().model().weights->shards();
    if (shards == nullptr) continue;
    sent[Sent::kParameters] += shards->memory().answered_bytes();
    sent[Sent::kControl] += shards->memory().asked_bytes();
  }
  return sent;
}

api::AdapterSlot Runner::create_adapter(const std::vector<model::LoraModuleSpec>& specs,
                                        uint64_t seed) {
  api::AdapterSlot slot = {};
  for (const auto& runner : runners_) slot = runner->engine().create_adapter(specs, seed);
  return slot;
}

api::AdapterSlot Runner::load_adapter(const std::string& dir) {
  api::AdapterSlot slot = {};
  for (const auto& runner : runners_) slot = runner->engine().load_adapter(dir);
  return slot;
}

api::BatchResult Runner::run(const api::Batch& batch, api::TensorSink* sink) {
  // The likeliest tokens stay with the last stage: commands refuse it.
  CHECK(plan_.num_stages() == 1 || !batch.want_top);
  const Ending ending{runners_};
  release_weights_and_wait_for_all();  // of what was run besides batches
  api::BatchResult result;
  result.sequences.resize(batch.sequences.size());
  for (const auto& runner : runners_) runner->begin_batch(batch, result, sink);
  start_rounds(batch);
  progress_ = {.total = weighed_tokens(batch, 0, batch.sequences.size())};
  size_t num_backwards = 0;
  while (next_round(plan_, engine().options().pass_tokens, batch, round_)) {
    for (const auto& runner : runners_) runner->begin(round_, num_backwards);
    begin_progress_of_round(batch);
    run_actions(batch);
    result.num_passes += round_.num_microbatches();
    num_backwards += round_.num_backwards();
  }
  // Who has no more passes takes what others have made; nobody needs a weight for that.
  const bool is_dealt = round_.num_dealt > 1;
  if (is_dealt) {
    for (const auto& chain : chains_) chain->finish_batch();
  }
  release_weights_and_wait_for_all();
  if (batch.want_loss) distribute_losses(batch, result);
  gather_large_results(batch, sink);
  sum_losses(result);
  return result;
}

void Runner::begin_progress_of_round(const api::Batch& batch) {
  progress_.done += progress_.round;
  progress_.round = weighed_tokens(batch, round_.firsts.front(), round_.firsts.back());
  progress_.layers_before = runners_.front()->layers_done();
  int64_t num_own = 0;
  for (int own = 0; round_.has(own); ++own) ++num_own;
  const int64_t weight = runs_backward(batch) ? 3 : 1;
  progress_.layers = num_own * engine().model().weights->part().size() * weight;
}

double Runner::fraction_done() const {
  if (progress_.total == 0.0) return 0.0;
  const auto layers =
      static_cast<double>(runners_.front()->layers_done() - progress_.layers_before);
  const double of_round =
      progress_.layers == 0 ? 1.0 : std::min(1.0, layers / static_cast<double>(progress_.layers));
  return (progress_.done + progress_.round * of_round) / progress_.total;
}

void Runner::start_rounds(const api::Batch& batch) {
  round_.clear();
  round_.dealt = 0;
  round_.num_dealt = 1;
  if (data_) deal_microbatches(batch);
  if (round_.num_dealt == 1) return;
  for (const auto& chain : chains_) chain->begin_batch(batch, of_backwards_);
}

// A round with fewer sequences than micro-batches leaves out what it has none for: the rest of a
// schedule is one as well.
void Runner::run_actions(const api::Batch& batch) {
  const bool backward = runs_backward(batch);
  for (const schedule::Slot& slot : plan_.table.rows[static_cast<size_t>(comm_.rank())]) {
    for (const schedule::Action& action : slot.actions()) {
      if (!round_.has(action.microbatch)) continue;
      if (!backward && !is_of_forward(action.op)) continue;
      stage_here(action.stage)->run(action);
    }
  }
}

void Runner::add_large_tensors(const api::Batch& batch, int64_t num_tokens, api::TensorSink* sink) {
  CHECK(sink != nullptr || !(batch.want_hidden_states || batch.want_logits));
  const model::ModelConfig& c = engine().config();
  if (batch.want_hidden_states)
    sink->add("hidden_states", {c.num_layers() + 1, num_tokens, c.state_width()});
  if (wants_final_hidden(batch, c)) sink->add("final_hidden", {num_tokens, c.hidden_size});
  if (batch.want_logits) sink->add("logits", {num_tokens, c.vocab_size});
  if (wants_mtp_logits(batch)) sink->add("mtp_logits", {num_tokens, c.vocab_size});
}

void Runner::gather_large_results(const api::Batch& batch, api::TensorSink* sink) {
  if (plan_.num_stages() == 1) return;  // they are there
  int64_t total = 0;
  for (const api::Sequence& sequence : batch.sequences) total += std::ssize(sequence.datum->tokens);
  const model::ModelConfig& c = engine().config();
  const int last = plan_.num_stages() - 1;
  if (is_first_rank()) add_large_tensors(batch, total, sink);
  if (batch.want_hidden_states) gather_hidden_states(total, sink);
  if (wants_final_hidden(batch, c))
    gather_result_part("final_hidden", last, sink, 0, total * c.hidden_size);
  if (batch.want_logits) gather_result_part("logits", last, sink, 0, total * c.vocab_size);
  if (wants_mtp_logits(batch))
    gather_result_part("mtp_logits", last, sink, 0, total * c.vocab_size);
}

// The layers' inputs of each stage, and of the last one its output too.
void Runner::gather_hidden_states(int64_t num_tokens, api::TensorSink* sink) {
  const int64_t entry = num_tokens * engine().config().state_width();
  for (int stage = 0; stage < plan_.num_stages(); ++stage) {
    const model::LayerRange& range = plan_.layers[static_cast<size_t>(stage)];
    const int64_t outputs = stage == plan_.num_stages() - 1 ? 1 : 0;
    gather_result_part("hidden_states", stage, sink, range.first * entry,
                       (range.size() + outputs) * entry);
  }
}

// A stage's part of a result: `count` values, which are those from `first` on of the whole.
void Runner::gather_result_part(const std::string& name, int stage, api::TensorSink* sink,
                                int64_t first, int64_t count) {
  StageRunner* here = stage_here(stage);
  std::vector<float>* part = here == nullptr ? nullptr : &here->sink().at(name).values;
  std::vector<float>* whole = is_first_rank() ? &sink->at(name).values : nullptr;
  CHECK(part == nullptr || count <= std::ssize(*part), name, count);
  CHECK(whole == nullptr || first + count <= std::ssize(*whole), name, first, count);
  if (rank_of(stage) == 0 && is_first_rank()) {  // from the host's memory to the host's
    std::copy_n(part->begin(), count, whole->begin() + first);
    return;
  }
  const auto flat = [&](std::vector<float>* values, int64_t begin) {
    return values == nullptr ? TensorView()
                             : TensorView(values->data() + begin, DType::kF32, {count});
  };
  gather_tensor(owner_of(stage, 0), flat(part, 0), flat(whole, first));
}

// The root of the sum of what all stages summed, in the order of the whole: each has zeroes where
// another one's are, which change nothing.
double Runner::gather_global_norm() {
  {
    const TraceSpan span("gather");
    comm_.all_gather(sums_, all_sums_);
  }
  double squares = 0.0;
  for (size_t i = 0; i < sums_.size(); ++i) {
    double sum = 0.0;
    for (size_t at = i; at < all_sums_.size(); at += sums_.size()) sum += all_sums_[at];
    squares += sum;
  }
  return std::sqrt(squares);
}

api::StepResult Runner::step(api::AdapterSlot slot, const api::AdamW& adamw) {
  const TraceSpan span("optimizer step", "slot", static_cast<int64_t>(slot));
  return slot == api::AdapterSlot::kBase ? step_base(adamw) : step_adapter(slot, adamw);
}

void Runner::sum_adapter_squares(api::AdapterSlot slot) {
  sums_.assign(2 * engine().adapter(slot).modules().size(), 0.0);
  for (const auto& runner : runners_) {
    train::add_grad_squares(runner->engine().backend(), runner->engine().adapter(slot), sums_);
  }
}

api::StepResult Runner::step_adapter(api::AdapterSlot slot, const api::AdamW& adamw) {
  const model::LoraAdapter& own = engine().adapter(slot);
  if (!own.trains() || !own.has_gradient) return {.stepped = false, .step = own.step};
  // The same sums in one op.
  if (plan_.num_stages() == 1)
    return train::step_adapter(engine().backend(), engine().adapter(slot), adamw);
  finish_adapter_gradients(slot);
  sum_adapter_squares(slot);
  const double norm = gather_global_norm();
  if (!std::isfinite(norm)) {
    // The first one's is dropped, and told, by its step.
    for (size_t i = 1; i < runners_.size(); ++i)
      runners_[i]->engine().adapter(slot).drop_gradients();
  }
  api::StepResult result;
  for (const auto& runner : runners_) {
    Engine& stage = runner->engine();
    result = train::step_adapter(stage.backend(), stage.adapter(slot), adamw, norm);
  }
  return result;
}

void Runner::enable_base_steps(const train::BaseStep& how) {
  ownerships_.clear();
  for (const auto& runner : runners_) runner->engine().enable_base_steps(how);
  release_weights_and_wait_for_all();  // of which masters may have been read
}

void Runner::receive_state(TensorView state) {
  if (first_stage_ == 0) return;
  const TraceSpan span("receive");
  comm_.receive(rank_of(first_stage_ - 1), plan_.gather_tag() + kStateTag, state);
}

void Runner::send_state(TensorView state) {
  if (first_stage_ + 1 < plan_.num_stages())
    comm_.send(rank_of(first_stage_ + 1), plan_.gather_tag() + kStateTag, state);
}

void Runner::broadcast_from_last_stage(std::string& bytes) {
  const int owner = rank_of(plan_.num_stages() - 1);
  const int64_t tag = plan_.gather_tag() + kNewsTag;
  auto size = std::ssize(bytes);
  if (comm_.rank() != owner) {
    comm_.receive_bytes(owner, tag, &size, sizeof(size));
    bytes.resize(static_cast<size_t>(size));
    return comm_.receive_bytes(owner, tag + 1, bytes.data(), size);
  }
  for (int rank = 0; rank < comm_.size(); ++rank) {
    if (rank == owner) continue;
    comm_.send_bytes(rank, tag, &size, sizeof(size));
    comm_.send_bytes(rank, tag + 1, bytes.data(), size);
  }
}

bool Runner::broadcast_decision(bool of_first_rank) {
  if (comm_.size() == 1) return of_first_rank;
  const double mine = of_first_rank ? 1.0 : 0.0;
  comm_.all_gather({&mine, 1}, all_sums_);
  return all_sums_.front() != 0.0;
}

void Runner::zero_base_gradients() {
  for (const auto& runner : runners_) {
    runner->engine().base_trainer().zero_gradients(runner->engine().backend());
  }
}

void Runner::sum_base_squares() {
  sums_.assign(engine().model().weights->table().size(), 0.0);
  for (const auto& runner : runners_) {
    Engine& stage = runner->engine();
    if (data_) {
      add_own_squares(*data_, stage, sums_);
    } else {
      stage.base_trainer().add_grad_squares(stage.backend(), sums_);
    }
  }
  if (data_) sum_over_data_ranks();
}

api::StepResult Runner::step_base(const api::AdamW& adamw) {
  for (const auto& runner : runners_) runner->engine().enable_base_steps();
  const train::BaseTrainer& own = engine().base_trainer();
  if (!own.has_gradient) return {.stepped = false, .step = own.num_steps};
  finish_base_gradients();
  sum_base_squares();
  const double norm = gather_global_norm();
  if (data_) sum_expert_loads();
  if (!std::isfinite(norm)) {
    for (size_t i = 1; i < runners_.size(); ++i) {
      Engine& stage = runners_[i]->engine();
      stage.base_trainer().zero_gradients(stage.backend());
    }
  }
  api::StepResult result;
  for (const auto& runner : runners_) {
    Engine& stage = runner->engine();
    result = stage.base_trainer().step(stage.backend(), *stage.model().weights, adamw, norm);
    if (data_) exchange_parameters(*data_, stage);
  }
  send_embedding_to_last_stage();
  return result;
}

}  // namespace strata::engine
