// SPDX-License-Identifier: Apache-2.0
#include "engine/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "base/trace.h"
#include "engine/pipeline/owners.h"
#include "engine/pipeline/rank_stages.h"
#include "engine/pipeline/sent_plan.h"
#include "engine/pipeline/tied_embedding.h"
#include "train/optimizer.h"

namespace strata::engine {
namespace {

bool is_of_forward(schedule::Op op) {
  return op == schedule::Op::kForward || op == schedule::Op::kSendForward ||
         op == schedule::Op::kRecvForward;
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
struct BatchGuard {
  std::vector<std::unique_ptr<StageRunner>>& runners;
  ~BatchGuard() {
    for (const auto& runner : runners) runner->end_batch();
  }
};

// Tokens of sequences [first, last), where a backward counts as two forwards.
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

Runner::Runner(std::unique_ptr<RankStages> here)
    : here_(std::move(here)),
      gather_(std::make_unique<RankGather>(*here_)),
      embedding_(std::make_unique<TiedEmbedding>(*here_)) {}

Runner::Runner(Engine& whole) : Runner(std::make_unique<RankStages>(whole)) {}

Runner::Runner(Comm& comm, const PipelinePlan& plan, std::vector<std::unique_ptr<Engine>> engines)
    : Runner(std::make_unique<RankStages>(comm, plan, std::move(engines))) {}

Runner::Runner(Comm& comm, const PipelinePlan& plan, Engine& stage)
    : Runner(std::make_unique<RankStages>(comm, plan, stage)) {}

Runner::~Runner() = default;

Comm& Runner::comm() { return here_->all(); }

bool Runner::is_first_rank() const { return here_->is_first_rank(); }

const PipelinePlan& Runner::plan() const { return here_->plan(); }

Engine& Runner::engine() { return here_->engine(); }

std::vector<std::unique_ptr<StageRunner>>& Runner::stages() { return here_->runners(); }

int64_t Runner::shared_weight_bytes() const { return here_->shared_weight_bytes(); }

SentBytes Runner::sent() const { return here_->sent(); }

void Runner::for_adapter(api::AdapterSlot slot, FunctionRef<void(model::LoraAdapter&)> body) {
  for (const auto& runner : here_->runners()) body(runner->engine().adapter(slot));
}

api::AdapterSlot Runner::create_adapter(const std::vector<model::LoraModuleSpec>& specs,
                                        uint64_t seed) {
  api::AdapterSlot slot = {};
  for (const auto& runner : here_->runners()) slot = runner->engine().create_adapter(specs, seed);
  return slot;
}

api::AdapterSlot Runner::load_adapter(const std::string& dir) {
  api::AdapterSlot slot = {};
  for (const auto& runner : here_->runners()) slot = runner->engine().load_adapter(dir);
  return slot;
}

int Runner::stage_with(LossLists lists) const {
  return lists == LossLists::kOfIndexers ? 0 : here_->plan().num_stages() - 1;
}

api::BatchResult Runner::run(const api::Batch& batch, api::TensorSink* sink) {
  // The likeliest tokens stay with the last stage: commands refuse it.
  CHECK(here_->plan().num_stages() == 1 || !batch.want_top);
  // All ranks make the passes of a batch whose large results are wanted: nothing that trains wants
  // any.
  const bool is_large = batch.want_hidden_states || batch.want_logits;
  CHECK(here_->dealing() == nullptr || !is_large || batch.gradients == api::Gradients::kNone);
  const BatchGuard guard{here_->runners()};
  here_->release_divided_weights();  // of what was run besides batches
  api::BatchResult result;
  result.sequences.resize(batch.sequences.size());
  for (const auto& runner : here_->runners()) runner->begin_batch(batch, result, sink);
  start_rounds(batch);
  progress_ = {.total = weighed_tokens(batch, 0, batch.sequences.size())};
  StageRunner::Backwards before;
  while (next_round(here_->plan(), engine().options().pass_tokens, batch, round_)) {
    for (const auto& runner : here_->runners()) runner->begin(round_, before);
    begin_progress_of_round(batch);
    run_actions(batch);
    result.num_passes += round_.num_microbatches();
    before.passes += round_.num_backwards();
    before.groups += round_.num_backward_groups();
  }
  // Who has no more passes takes what others have made; nobody needs a weight for that.
  const bool is_dealt = round_.num_dealt > 1;
  if (is_dealt) {
    for (const auto& chain : here_->chains()) chain->finish_batch();
  }
  here_->release_divided_weights();
  if (batch.want_loss) distribute_losses(batch, result);
  gather_large_results(batch, sink);
  sum_losses(result);
  return result;
}

void Runner::begin_progress_of_round(const api::Batch& batch) {
  progress_.done += progress_.round;
  progress_.round = weighed_tokens(batch, round_.firsts.front(), round_.firsts.back());
  progress_.layers_before = here_->runners().front()->layers_done();
  int64_t num_own = 0;
  for (int own = 0; round_.has(own); ++own) ++num_own;
  const int64_t weight = runs_backward(batch) ? 3 : 1;
  progress_.layers = num_own * engine().model().weights->part().size() * weight;
}

double Runner::fraction_done() const {
  if (progress_.total == 0.0) return 0.0;
  const auto layers =
      static_cast<double>(here_->runners().front()->layers_done() - progress_.layers_before);
  const double of_round =
      progress_.layers == 0 ? 1.0 : std::min(1.0, layers / static_cast<double>(progress_.layers));
  return (progress_.done + progress_.round * of_round) / progress_.total;
}

void Runner::start_rounds(const api::Batch& batch) {
  round_.clear();
  round_.dealt = 0;
  round_.num_dealt = round_.num_at_once = 1;
  if (num_dealing(here_->plan(), batch) > 1) deal_microbatches(batch);
  if (round_.num_dealt == 1) return;
  for (const auto& chain : here_->chains())
    chain->begin_batch(batch, chain->is_of_experts() ? of_backward_groups_ : of_backwards_);
}

// A round with fewer sequences than micro-batches leaves out what it has none for: the rest of a
// schedule is one as well.
void Runner::run_actions(const api::Batch& batch) {
  const bool backward = runs_backward(batch);
  for (const schedule::Slot& slot :
       here_->plan().table.rows[static_cast<size_t>(here_->pipeline().rank())]) {
    for (const schedule::Action& action : slot.actions()) {
      // Without a sequence of its own an expert rank runs its experts for the others.
      if (!round_.any_has(action.microbatch)) continue;
      if (!backward && !is_of_forward(action.op)) continue;
      here_->find(action.stage)->run(action);
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
  if (here_->plan().num_stages() == 1) return;  // they are there
  int64_t total = 0;
  for (const api::Sequence& sequence : batch.sequences) total += std::ssize(sequence.datum->tokens);
  const model::ModelConfig& c = engine().config();
  const int last = here_->plan().num_stages() - 1;
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
  for (int stage = 0; stage < here_->plan().num_stages(); ++stage) {
    const model::LayerRange& range = here_->plan().layers[static_cast<size_t>(stage)];
    const int64_t outputs = stage == here_->plan().num_stages() - 1 ? 1 : 0;
    gather_result_part("hidden_states", stage, sink, range.first * entry,
                       (range.size() + outputs) * entry);
  }
}

// A stage's part of a result: `count` values, which are those from `first` on of the whole.
void Runner::gather_result_part(const std::string& name, int stage, api::TensorSink* sink,
                                int64_t first, int64_t count) {
  StageRunner* here = here_->find(stage);
  std::vector<float>* part = here == nullptr ? nullptr : &here->sink().at(name).values;
  std::vector<float>* whole = is_first_rank() ? &sink->at(name).values : nullptr;
  CHECK(part == nullptr || count <= std::ssize(*part), name, count);
  CHECK(whole == nullptr || first + count <= std::ssize(*whole), name, first, count);
  if (here_->rank_of(stage) == 0 && is_first_rank()) {  // from the host's memory to the host's
    std::copy_n(part->begin(), count, whole->begin() + first);
    return;
  }
  const auto flat = [&](std::vector<float>* values, int64_t begin) {
    return values == nullptr ? TensorView()
                             : TensorView(values->data() + begin, DType::kF32, {count});
  };
  gather_->tensor(here_->owner_of(stage, 0), flat(part, 0), flat(whole, first));
}

// The root of the sum of what all stages summed, in the order of the whole: each has zeroes where
// another one's are, which change nothing.
double Runner::gather_global_norm() {
  {
    const TraceSpan span("gather");
    here_->pipeline().all_gather(sums_, all_sums_);
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
  for (const auto& runner : here_->runners()) {
    train::add_grad_squares(runner->engine().backend(), runner->engine().adapter(slot), sums_);
  }
}

api::StepResult Runner::step_adapter(api::AdapterSlot slot, const api::AdamW& adamw) {
  const model::LoraAdapter& own = engine().adapter(slot);
  if (!own.trains() || !own.has_gradient) return {.stepped = false, .step = own.step};
  if (here_->plan().num_stages() == 1) {
    exchange_expert_gradients(slot);
    // The same sums in one op.
    return train::step_adapter(engine().backend(), engine().adapter(slot), adamw);
  }
  finish_adapter_gradients(slot);
  sum_adapter_squares(slot);
  const double norm = gather_global_norm();
  if (!std::isfinite(norm)) {
    // The first one's is dropped, and told, by its step.
    for (size_t i = 1; i < here_->runners().size(); ++i)
      here_->runners()[i]->engine().adapter(slot).drop_gradients();
  }
  api::StepResult result;
  for (const auto& runner : here_->runners()) {
    Engine& stage = runner->engine();
    result = train::step_adapter(stage.backend(), stage.adapter(slot), adamw, norm);
  }
  return result;
}

void Runner::enable_base_steps(const train::BaseStep& how) {
  here_->clear_ownerships();
  for (const auto& runner : here_->runners()) runner->engine().enable_base_steps(how);
  here_->release_divided_weights();  // of which masters may have been read
}

void Runner::connect_weights() { here_->connect_weights(); }

void Runner::receive_state(TensorView state) {
  if (here_->first_stage() == 0) return;
  const TraceSpan span("receive");
  here_->pipeline().receive(here_->rank_of(here_->first_stage() - 1),
                            here_->plan().gather_tag() + kStateTag, state);
}

void Runner::send_state(TensorView state) {
  if (here_->first_stage() + 1 < here_->plan().num_stages())
    here_->pipeline().send(here_->rank_of(here_->first_stage() + 1),
                           here_->plan().gather_tag() + kStateTag, state);
}

void Runner::broadcast_from_last_stage(std::string& bytes) {
  const int owner = here_->rank_of(here_->plan().num_stages() - 1);
  const int64_t tag = here_->plan().gather_tag() + kNewsTag;
  auto size = std::ssize(bytes);
  if (here_->pipeline().rank() != owner) {
    here_->pipeline().receive_bytes(owner, tag, &size, sizeof(size));
    bytes.resize(static_cast<size_t>(size));
    return here_->pipeline().receive_bytes(owner, tag + 1, bytes.data(), size);
  }
  for (int rank = 0; rank < here_->pipeline().size(); ++rank) {
    if (rank == owner) continue;
    here_->pipeline().send_bytes(rank, tag, &size, sizeof(size));
    here_->pipeline().send_bytes(rank, tag + 1, bytes.data(), size);
  }
}

bool Runner::tell_last_stage(std::string& bytes) {
  const PipelinePlan& plan = here_->plan();
  const int first = here_->owner_of(plan.num_stages() - 1, 0), end = first + plan.num_pipelines();
  const int64_t tag = plan.gather_tag() + kMaskTag;
  CountedComm& ranks = here_->everyone();
  auto size = std::ssize(bytes);
  for (int rank = first; ranks.rank() == 0 && rank < end; ++rank) {
    if (rank == 0) continue;
    ranks.send_bytes(rank, tag, &size, sizeof(size));
    ranks.send_bytes(rank, tag + 1, bytes.data(), size);
  }
  if (ranks.rank() == 0 || ranks.rank() < first || ranks.rank() >= end) return false;
  ranks.receive_bytes(0, tag, &size, sizeof(size));
  bytes.resize(static_cast<size_t>(size));
  ranks.receive_bytes(0, tag + 1, bytes.data(), size);
  return true;
}

bool Runner::broadcast_decision(bool of_first_rank) {
  CountedComm& ranks = here_->plan().num_alike() > 1 ? here_->everyone() : here_->pipeline();
  if (ranks.size() == 1) return of_first_rank;
  const double mine = of_first_rank ? 1.0 : 0.0;
  ranks.all_gather({&mine, 1}, all_sums_);
  return all_sums_.front() != 0.0;
}

std::vector<SentBytes> Runner::plan_sends(const api::Batch& batch,
                                          std::span<const api::AdapterSlot> stepped) {
  std::vector<SentBytes> all = engine::plan_sends(plan(), engine(), batch, stepped);
  if (plan().num_alike() == 1) return all;
  constexpr std::array kKinds = {Sent::kActivations, Sent::kActivationGradients, Sent::kControl};
  std::vector<SentBytes> of_stages(all.size());
  for (const auto& runner : here_->runners()) {
    if (here_->gathers())
      add_messages_within_stage(plan(), runner->stage(), runner->engine(), batch, of_stages);
  }
  std::vector<double> own, told;
  for (SentBytes& sent : of_stages) {
    for (const Sent kind : kKinds) own.push_back(static_cast<double>(sent[kind]));
  }
  comm().all_gather(own, told);
  for (size_t i = 0; i < told.size(); ++i) {
    all[i % own.size() / kKinds.size()][kKinds[i % kKinds.size()]] += static_cast<int64_t>(told[i]);
  }
  return all;
}

void Runner::finish_adapter_gradients(api::AdapterSlot slot) {
  embedding_->swap_adapter_gradients(slot);
  for (const auto& runner : here_->runners()) {
    runner->engine().adapter(slot).merge_gradients_apart(runner->engine().backend());
  }
  exchange_expert_gradients(slot);
}

void Runner::finish_base_gradients() {
  embedding_->reduce_gradients();
  for (const auto& runner : here_->runners()) {
    runner->engine().base_trainer().finish_gradients(runner->engine().backend());
  }
}

void Runner::zero_base_gradients() {
  for (const auto& runner : here_->runners()) {
    runner->engine().base_trainer().zero_gradients(runner->engine().backend());
  }
}

// Behind what sums_ has.
void Runner::sum_own_squares() {
  Comm* const owners = here_->dealing();
  if (owners == nullptr) {
    for (const auto& runner : here_->runners())
      runner->engine().base_trainer().add_grad_squares(runner->engine().backend(), sums_);
    return;
  }
  const std::vector<double> before = sums_;
  std::fill(sums_.begin(), sums_.end(), 0.0);
  for (const auto& runner : here_->runners())
    add_own_squares(*owners, runner->engine(), before, sums_);
  sum_over_ranks(*owners);
  // Parameters of which no rank of the group has a row keep the sums from before.
  const std::vector<model::Parameter>& table = engine().model().weights->table();
  for (size_t index = 0; index < sums_.size(); ++index) {
    if (table[index].num_rows() == 0) sums_[index] = before[index];
  }
}

// A parameter's rows are added up from the first tensor rank to the last, which has the sum.
void Runner::continue_sums_over_ranks(Comm& tensor) {
  const auto bytes = static_cast<int64_t>(std::span<double>(sums_).size_bytes());
  if (tensor.rank() > 0) tensor.receive_bytes(tensor.rank() - 1, kSquaresTag, sums_.data(), bytes);
  sum_own_squares();
  if (tensor.rank() + 1 < tensor.size()) {
    tensor.send_bytes(tensor.rank() + 1, kSquaresTag, sums_.data(), bytes);
    std::fill(sums_.begin(), sums_.end(), 0.0);
  }
  sum_over_ranks(tensor);
}

void Runner::sum_base_squares() {
  sums_.assign(engine().model().weights->table().size(), 0.0);
  if (Comm* ranks = here_->tensor_ranks()) {
    continue_sums_over_ranks(*ranks);
  } else {
    sum_own_squares();
  }
}

api::StepResult Runner::step_base(const api::AdamW& adamw) {
  for (const auto& runner : here_->runners()) runner->engine().enable_base_steps();
  const train::BaseTrainer& own = engine().base_trainer();
  if (!own.has_gradient) return {.stepped = false, .step = own.num_steps};
  finish_base_gradients();
  sum_base_squares();
  const double norm = gather_global_norm();
  if (here_->dealing() != nullptr) sum_expert_loads();
  if (!std::isfinite(norm)) {
    for (size_t i = 1; i < here_->runners().size(); ++i) {
      Engine& stage = here_->runners()[i]->engine();
      stage.base_trainer().zero_gradients(stage.backend());
    }
  }
  api::StepResult result;
  for (const auto& runner : here_->runners()) {
    Engine& stage = runner->engine();
    result = stage.base_trainer().step(stage.backend(), *stage.model().weights, adamw, norm);
    if (here_->dealing() != nullptr) exchange_parameters(here_->owner_groups(), stage);
  }
  embedding_->send_to_last_stage();
  return result;
}

void Runner::refresh_base_weights() {
  for (const auto& runner : here_->runners()) {
    Engine& stage = runner->engine();
    stage.base_trainer().refresh_weights(stage.backend(), *stage.model().weights);
    if (here_->dealing() != nullptr) exchange_parameters(here_->owner_groups(), stage);
  }
  embedding_->send_to_last_stage();
}

}  // namespace strata::engine
