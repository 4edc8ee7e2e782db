// SPDX-License-Identifier: Apache-2.0
#include "setup/simulated_step.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/pipeline/owner_group.h"
#include "engine/pipeline/owners.h"
#include "engine/pipeline/round.h"
#include "model/pass/shared_values.h"
#include "model/tensor_ranks.h"

namespace strata::apps {
namespace {

using engine::Work;
using schedule::Exchange;

constexpr auto kF32Bytes = static_cast<double>(dtype_bytes(DType::kF32));

// Turns a step into what the simulator takes. Ranks are those of one pipeline here.
class SimulatedStep {
 public:
  SimulatedStep(const ClusterStep& step, const Cluster& cluster)
      : step_(step),
        pipeline_(step.plan.pipeline),
        config_(step.engine.config()),
        weights_(*step.engine.model().weights),
        cluster_(cluster),
        costs_(engine::layer_costs(config_)),
        num_tokens_(static_cast<double>(step.shape.step_tokens)) {
    for (const model::LayerRange& range : pipeline_.layers) {
      layer_costs_.push_back(std::accumulate(costs_.layers.begin() + range.first,
                                             costs_.layers.begin() + range.last, 0.0));
    }
  }

  [[nodiscard]] schedule::SimulationSpec spec(bool keeps_spans) const {
    return spec_of([&](int stage) { return work_of_stage(stage); }, keeps_spans);
  }
  // A spec whose actions are no longer than those of any plan, whatever it recomputes and moves
  // besides weights. `weight_bytes`: of each stage.
  [[nodiscard]] schedule::SimulationSpec least_spec(std::span<const int64_t> weight_bytes) const {
    return spec_of([&](int stage) { return least_work_of_stage(stage, weight_bytes); },
                   /*keeps_spans=*/false);
  }
  // What the busiest rank computes at least.
  [[nodiscard]] double least_compute_seconds(std::span<const int64_t> weight_bytes) const {
    std::vector<double> ranks = step_seconds();
    for (int stage = 0; stage <= last_stage(); ++stage) {
      ranks[static_cast<size_t>(rank_of(stage))] +=
          engine::seconds_of(least_work(stage, weight_bytes), cluster_.limits);
    }
    return *std::ranges::max_element(ranks);
  }

 private:
  // `work_of`: of a stage, but for what crosses its borders.
  template <typename WorkOf>
  [[nodiscard]] schedule::SimulationSpec spec_of(WorkOf work_of, bool keeps_spans) const {
    schedule::SimulationSpec spec = {.table = pipeline_.table,
                                     .stages = {},
                                     .rounds = cut_rounds(),
                                     .data = pipeline_.data,
                                     .alike = pipeline_.num_alike(),
                                     .neighbours = pipeline_.expert,
                                     .gradients = {},
                                     .owns_shares = trains_base(),
                                     .before_step = exchanges_before_step(),
                                     .after_step = exchanges_after_step(),
                                     .step_s = step_seconds(),
                                     .links = cluster_.links,
                                     .keeps_spans = keeps_spans};
    for (int stage = 0; stage <= last_stage(); ++stage) {
      schedule::StageWork& work = spec.stages.emplace_back(work_of(stage));
      work.state_bytes =
          static_cast<double>(model::border_width(config_) * dtype_bytes(weights_.compute_dtype()));
      work.grad_bytes = kF32Bytes * num_border_gradients();
      if (pipeline_.num_alike() > 1) add_waits_within(stage, work);
      spec.gradients.push_back(
          {.num_parts = num_parts(stage), .bytes = kF32Bytes * num_gradient_values(stage)});
    }
    return spec;
  }

  [[nodiscard]] int num_parts(int stage) const {
    return static_cast<int>(
        std::max<int64_t>(1, pipeline_.layers[static_cast<size_t>(stage)].size()));
  }
  [[nodiscard]] int last_stage() const { return pipeline_.num_stages() - 1; }
  [[nodiscard]] int rank_of(int stage) const { return pipeline_.ranks[static_cast<size_t>(stage)]; }
  // Ranks that deal a step's tokens out among themselves; of them those that go their own ways,
  // where expert ranks go together; and all that divide a stage's products.
  [[nodiscard]] double dealing() const { return pipeline_.num_dealing(); }
  [[nodiscard]] double data() const { return pipeline_.data; }
  [[nodiscard]] double workers() const { return dealing() * pipeline_.tensor; }
  [[nodiscard]] bool trains_base() const { return step_.shape.pass.train_base; }
  [[nodiscard]] const std::vector<model::LoraModuleSpec>& modules() const {
    return step_.shape.pass.modules;
  }
  [[nodiscard]] engine::StepShape step_shape() const {
    return {.lengths = step_.shape.lengths,
            .modules = modules(),
            .indexer_loss = step_.shape.pass.indexer_loss};
  }

  // The tokens of each round's micro-batches, as the engine cuts them. Of those that expert ranks
  // run together the longest counts.
  [[nodiscard]] std::vector<std::vector<int64_t>> cut_rounds() const {
    engine::Round round;
    round.num_dealt = pipeline_.num_dealing();
    round.num_at_once = pipeline_.expert;
    std::vector<std::vector<int64_t>> rounds;
    while (next_round(pipeline_, step_.plan.micro_tokens, step_.batch, round)) {
      std::vector<int64_t>& tokens = rounds.emplace_back();
      for (int m = 0; m < round.num_microbatches(); ++m) {
        const int place = m / pipeline_.expert;
        if (place >= std::ssize(tokens)) tokens.resize(static_cast<size_t>(place) + 1, 0);
        int64_t& longest = tokens[static_cast<size_t>(place)];
        longest = std::max(longest, tokens_of_microbatch(round, static_cast<size_t>(m)));
      }
    }
    return rounds;
  }
  [[nodiscard]] int64_t tokens_of_microbatch(const engine::Round& round, size_t m) const {
    int64_t sum = 0;
    for (size_t s = round.firsts[m]; s < round.firsts[m + 1]; ++s)
      sum += std::ssize(step_.batch.sequences[s].datum->tokens);
    return sum;
  }

  // Shares of all work: of layers, and of a stage with the head.
  [[nodiscard]] double all_costs() const {
    return std::accumulate(layer_costs_.begin(), layer_costs_.end(), costs_.head);
  }
  [[nodiscard]] double head_share() const { return costs_.head / all_costs(); }
  [[nodiscard]] double share_of_stage(int stage) const {
    return layer_costs_[static_cast<size_t>(stage)] / all_costs() +
           (stage == last_stage() ? head_share() : 0.0);
  }
  // A stage's share of the layers of all stages.
  [[nodiscard]] double share_of_layers(int stage) const {
    return layer_costs_[static_cast<size_t>(stage)] / (all_costs() - costs_.head);
  }
  [[nodiscard]] double share_of_rank(int rank) const {
    double share = 0.0;
    for (const int stage : pipeline_.stages_of(rank)) share += share_of_stage(stage);
    return share;
  }

  // An optimizer step without passes, of everything that trains.
  [[nodiscard]] Work whole_step_work() const {
    return engine::step_work(weights_, step_shape(), {.number = 0.0}, {});
  }
  [[nodiscard]] std::vector<double> step_seconds() const {
    std::vector<double> seconds;
    for (int rank = 0; rank < pipeline_.num_ranks(); ++rank) {
      const double share = share_of_rank(rank) / (trains_base() ? workers() : 1.0);
      seconds.push_back(engine::seconds_of(share * whole_step_work(), cluster_.limits));
    }
    return seconds;
  }
  // A rank's planned work without the optimizer step, which plans of passes that are cut by tokens
  // divide among the data ranks with all other work.
  [[nodiscard]] Work passes_of_rank(int rank) const {
    const double counted = share_of_rank(rank) / (pipeline_.cuts_by_tokens() ? dealing() : 1.0);
    return step_.plan.work[static_cast<size_t>(rank)] + -counted * whole_step_work();
  }

  // Floating-point operations of a rank's step in a stage that recomputes nothing: all of them, of
  // forwards, and of products for gradients of weights. The head's are all in the forward, which
  // makes logits, losses and the gradient of the hidden states.
  [[nodiscard]] double flops_of_stage(int stage) const {
    return share_of_stage(stage) * engine::step_flops(config_, step_shape()) / workers();
  }
  [[nodiscard]] double forward_flops_of_stage(int stage) const {
    const double head = stage == last_stage()
                            ? head_share() * engine::step_flops(config_, step_shape()) / workers()
                            : 0.0;
    return share_of_layers(stage) / workers() * engine::forward_flops(config_, step_shape()) + head;
  }
  [[nodiscard]] double weight_grad_flops(int stage) const {
    if (!trains_base()) return 0.0;
    return 2.0 * share_of_layers(stage) / workers() *
           static_cast<double>(engine::num_layer_weights(config_)) * num_tokens_;
  }

  // A stage's seconds go to its forwards, input gradients and weight gradients as its operations
  // do. What is recomputed is of the backward, before gradients are added to.
  [[nodiscard]] schedule::StageWork work_of_stage(int stage) const {
    const Work passes = passes_of_rank(rank_of(stage));
    const double share = share_of_stage(stage) / share_of_rank(rank_of(stage));
    const double seconds = share * engine::seconds_of(passes, cluster_.limits);
    const double all = share * passes.flops;
    const double weight_grad = weight_grad_flops(stage);
    const double forward = std::min(forward_flops_of_stage(stage), all - weight_grad);
    const double input_grad = all - forward - weight_grad;
    const double recomputed = std::clamp(all - flops_of_stage(stage), 0.0, input_grad);
    const double seconds_of_flop = seconds / all / (num_tokens_ / dealing());
    return {.forward_s = forward * seconds_of_flop,
            .input_grad_s = input_grad * seconds_of_flop,
            .recompute_s = recomputed * seconds_of_flop,
            .weight_grad_s = weight_grad * seconds_of_flop};
  }

  // Operations of a stage that recomputes nothing, and the reads of its weights.
  [[nodiscard]] Work least_work(int stage, std::span<const int64_t> weight_bytes) const {
    const Work all =
        engine::step_work(weights_, step_shape(), {.tokens = num_tokens_, .number = 0.0}, {});
    const double share = share_of_stage(stage) / workers();
    const double passes =
        pipeline_.cuts_by_tokens() ? 1.0 / dealing() : pipeline_.table.num_microbatches;
    return {.flops = share * all.flops,
            .f32_flops = share * all.f32_flops,
            .exponentials = share * all.exponentials,
            .bytes = passes * engine::kWeightReads *
                     static_cast<double>(weight_bytes[static_cast<size_t>(stage)])};
  }
  // Recomputing makes a layer's forward once more at most, in products that are as fast as any: an
  // operation then takes less on average, and so do forwards.
  [[nodiscard]] schedule::StageWork least_work_of_stage(
      int stage, std::span<const int64_t> weight_bytes) const {
    engine::MachineLimits fastest = cluster_.limits;
    fastest.flops = std::max(fastest.flops, fastest.f32_flops);
    const Work own = least_work(stage, weight_bytes);
    const Work again = {.flops = share_of_layers(stage) / workers() *
                                 engine::forward_flops(config_, step_shape())};
    const double seconds =
        engine::seconds_of(own, cluster_.limits) + engine::seconds_of(again, fastest);
    const double seconds_of_flop = seconds / (own.flops + again.flops) / (num_tokens_ / dealing());
    const double weight_grad = weight_grad_flops(stage);
    const double forward = std::min(forward_flops_of_stage(stage), own.flops - weight_grad);
    return {.forward_s = forward * seconds_of_flop,
            .input_grad_s = (own.flops - forward - weight_grad) * seconds_of_flop,
            .weight_grad_s = weight_grad * seconds_of_flop};
  }

  // Ranks that have parts of a stage's weights: what each of them does while the others wait, and
  // what all wait for their messages.
  void add_waits_within(int stage, schedule::StageWork& work) const {
    const double own_backward = work.input_grad_s - work.recompute_s;
    const double forward = engine::forward_flops(config_, step_shape());
    const auto share_of_weights = [&](int64_t weights) {
      return std::min(1.0, 2.0 * static_cast<double>(weights) * num_tokens_ / forward);
    };
    if (pipeline_.tensor > 1) {  // input gradients are sums that one rank continues after the other
      work.chain_s = (pipeline_.tensor - 1) * own_backward *
                     share_of_weights(engine::num_layer_weights(config_));
      work.chain_tokens = static_cast<double>(model::TensorRanks::kChainRows);
    }
    if (pipeline_.expert > 1) {  // all that adds to gradients that the ranks have together
      work.turns_s = (pipeline_.expert - 1) * (own_backward + work.weight_grad_s) *
                     (1.0 - share_of_weights(engine::num_expert_weights(config_)));
      const double bytes = pipeline_.expert * kF32Bytes * num_gradient_values(stage);
      const int hops = num_parts(stage) * pipeline_.expert;
      const schedule::Link link = link_within(stage);
      work.backward_latency_s += bytes / link.bytes_per_s + hops * link.latency_s;
    }
    if (!step_.messages.empty()) add_messages_within(stage, work);
  }
  void add_messages_within(int stage, schedule::StageWork& work) const {
    const StageMessages& messages = step_.messages[static_cast<size_t>(stage)];
    const schedule::Link link = link_within(stage);
    int64_t values = 0, gradients = 0;  // of the rank that sends most
    for (engine::SentBytes sent : messages.sent) {
      values = std::max(values, sent[engine::Sent::kActivations]);
      gradients = std::max(gradients, sent[engine::Sent::kActivationGradients]);
    }
    const double token_s = sent_share() / (num_tokens_ / dealing()) / link.bytes_per_s;
    work.forward_wait_s += static_cast<double>(values) * token_s;
    work.backward_wait_s += static_cast<double>(gradients) * token_s;
    int64_t actions = 0;
    for (const std::vector<int64_t>& round : cut_rounds()) actions += std::ssize(round);
    const double action_s = link.latency_s / static_cast<double>(actions);
    work.forward_latency_s += static_cast<double>(messages.waits.activations) * action_s;
    work.backward_latency_s += static_cast<double>(messages.waits.activation_gradients) * action_s;
  }
  // What is sent of what is planned: the most that may be is that every choice of a token is an
  // expert of another rank, and every token of the others chooses experts of this one. Choices that
  // are even are expected.
  [[nodiscard]] double sent_share() const {
    const double ranks = pipeline_.expert;
    return ranks > 1.0 ? 2.0 * (ranks - 1.0) / (ranks * ranks) : 1.0;
  }
  // What joins the ranks that have parts of a stage's weights: the slowest of their links.
  [[nodiscard]] schedule::Link link_within(int stage) const {
    const int first = pipeline_.rank_in_all(stage, 0, 0);
    const int last = pipeline_.rank_in_all(stage, pipeline_.expert - 1, pipeline_.tensor - 1);
    return cluster_.links.between(first, last);
  }

  // Numbers of a token's gradient at a border.
  [[nodiscard]] double num_border_gradients() const {
    const bool before_layers =
        trains_base() || std::ranges::any_of(modules(), [](const model::LoraModuleSpec& spec) {
          return spec.layer < 0 && spec.target != model::kHead;
        });
    return static_cast<double>(model::border_gradient_width(config_, before_layers) +
                               (step_.shape.pass.indexer_loss ? 1 : 0));
  }

  [[nodiscard]] int stage_of(int64_t layer, bool is_before_layers) const {
    if (layer >= 0) return pipeline_.stage_of_layer(layer);
    return is_before_layers ? 0 : last_stage();
  }
  // Values that backwards of a stage add to.
  [[nodiscard]] double num_gradient_values(int stage) const {
    return trains_base() ? num_base_values(stage) : num_adapter_values(stage);
  }
  [[nodiscard]] double num_adapter_values(int stage) const {
    const bool has_mtp = step_.shape.pass.mtp;
    int64_t values = 0;
    for (const model::LoraModuleSpec& spec : modules()) {
      const model::LoraTarget& target =
          weights_.layers().targets(spec.layer)[static_cast<size_t>(spec.target)];
      if (target.num_experts > 0 && pipeline_.expert > 1) continue;  // of one rank alone
      // Each part of a fused projection has a gradient of A of its own.
      const auto num_a = std::max<int64_t>(1, std::ssize(target.parts));
      const int64_t count =
          std::max<int64_t>(1, target.num_experts) * spec.rank * (num_a * target.in + target.out);
      if (stage_of(spec.layer, spec.target != model::kHead) == stage) values += count;
      if (has_mtp && spec.layer < 0 && stage == last_stage()) values += count;
    }
    return static_cast<double>(values);
  }
  [[nodiscard]] double num_base_values(int stage) const {
    const train::Ownership owners =
        engine::ownership_of(pipeline_, stage, /*tensor=*/0, step_.engine);
    int64_t values = 0;
    for (size_t index = 0; index < owners.items().size(); ++index)
      if (!engine::is_of_divided_experts(weights_, index))
        values += owners.items()[index].rows * owners.items()[index].cols;
    // Uses of an embedding that the stage does not own are accumulated here all the same.
    const bool has_uses = stage == last_stage();
    return static_cast<double>(values) + (has_uses ? num_values_of_uses() : 0.0);
  }
  [[nodiscard]] double num_values_of_uses() const {
    return static_cast<double>(train::num_borrowed_uses(config_)) * num_embedding_values();
  }
  [[nodiscard]] double num_embedding_values() const {
    return static_cast<double>(config_.vocab_size) * static_cast<double>(config_.hidden_size);
  }

  // One rank of the pipeline sends, or none.
  [[nodiscard]] std::vector<double> only_from(int rank, double bytes) const {
    std::vector<double> all(static_cast<size_t>(pipeline_.num_ranks()), 0.0);
    all[static_cast<size_t>(rank)] = bytes;
    return all;
  }
  [[nodiscard]] std::vector<double> from_each(double bytes) const {
    return std::vector<double>(static_cast<size_t>(pipeline_.num_ranks()), bytes);
  }
  [[nodiscard]] bool borrows_embedding() const {
    return trains_base() && last_stage() > 0 && train::num_borrowed_uses(config_) > 0 &&
           rank_of(0) != rank_of(last_stage());
  }

  // Losses of all tokens, gradients of a borrowed embedding, and sums of squares.
  [[nodiscard]] std::vector<Exchange> exchanges_before_step() const {
    using enum Exchange::Among;
    std::vector<Exchange> all;
    const auto add_losses = [&](int stage, double lists) {
      const double bytes = lists * num_tokens_ * kF32Bytes;
      all.push_back({.among = kData, .bytes = only_from(rank_of(stage), bytes / data())});
      all.push_back({.among = kPipeline, .bytes = only_from(rank_of(stage), bytes)});
    };
    add_losses(last_stage(), step_.shape.pass.mtp ? 3.0 : 2.0);
    if (step_.shape.pass.indexer_loss) add_losses(0, 1.0);
    if (borrows_embedding()) {
      all.push_back(
          {.among = kPipeline,
           .bytes = only_from(rank_of(last_stage()), num_values_of_uses() * kF32Bytes / data()),
           .receiver = rank_of(0)});
    }
    const auto sums =
        static_cast<double>(trains_base() ? weights_.table().size() : 2 * modules().size());
    all.push_back({.among = kPipeline, .bytes = from_each(sums * sizeof(double))});
    if (trains_base()) all.push_back({.among = kData, .bytes = from_each(sums * sizeof(double))});
    if (trains_base()) all.push_back({.among = kAlike, .bytes = from_each(sums * sizeof(double))});
    if (!trains_base() && pipeline_.expert > 1)
      all.push_back({.among = kAlike, .bytes = expert_gradient_bytes()});
    return all;
  }

  // What one of the expert ranks has of an adapter's experts, by rank of a pipeline.
  [[nodiscard]] std::vector<double> expert_gradient_bytes() const {
    std::vector<double> bytes = from_each(0.0);
    for (const model::LoraModuleSpec& spec : modules()) {
      const model::LoraTarget& target =
          weights_.layers().targets(spec.layer)[static_cast<size_t>(spec.target)];
      const auto values = target.num_experts * spec.rank * (target.in + target.out);
      bytes[static_cast<size_t>(rank_of(stage_of(spec.layer, false)))] +=
          kF32Bytes * static_cast<double>(values) / pipeline_.expert;
    }
    return bytes;
  }

  // What owners have made of their rows, and of an embedding that another stage reads too.
  [[nodiscard]] std::vector<Exchange> exchanges_after_step() const {
    using enum Exchange::Among;
    if (!trains_base()) return {};
    const double dtype = static_cast<double>(dtype_bytes(weights_.compute_dtype()));
    std::vector<double> owned(static_cast<size_t>(pipeline_.num_ranks()), 0.0);
    for (int stage = 0; stage <= last_stage(); ++stage) {
      const train::Ownership owners =
          engine::ownership_of(pipeline_, stage, /*tensor=*/0, step_.engine);
      for (size_t index = 0; index < owners.items().size(); ++index) {
        const train::Ownership::Item& item = owners.items()[index];
        if (engine::is_of_divided_experts(weights_, index)) continue;
        owned[static_cast<size_t>(rank_of(stage))] +=
            static_cast<double>(item.rows * item.cols) * dtype / dealing();
      }
    }
    std::vector<Exchange> all = {{.among = kData, .bytes = owned}};
    if (pipeline_.expert > 1) all.push_back({.among = kAlike, .bytes = std::move(owned)});
    if (borrows_embedding()) {
      all.push_back({.among = kPipeline,
                     .bytes = only_from(rank_of(0), num_embedding_values() * dtype / data()),
                     .receiver = rank_of(last_stage())});
    }
    return all;
  }

  const ClusterStep& step_;
  const engine::PipelinePlan& pipeline_;
  const model::ModelConfig& config_;
  const model::ModelWeights& weights_;
  const Cluster& cluster_;
  engine::LayerCosts costs_;
  double num_tokens_;                // of a step
  std::vector<double> layer_costs_;  // of each stage's layers
};

}  // namespace

PlannedBatch::PlannedBatch(const planner::RunShape& shape, api::AdapterSlot slot) {
  for (const int64_t length : shape.lengths)
    data_.push_back({.tokens = std::vector<int32_t>(static_cast<size_t>(length))});
  batch_ = {
      .gradients = shape.pass.train_base ? api::Gradients::kParameters : api::Gradients::kAdapters,
      .mtp_weight = shape.pass.mtp ? 1.0f : 0.0f,
      .indexer_weight = shape.pass.indexer_loss ? 1.0f : 0.0f};
  for (const api::Datum& datum : data_) batch_.sequences.push_back({.datum = &datum, .slot = slot});
}

schedule::Simulation simulate_step(const ClusterStep& step, const Cluster& cluster,
                                   bool keeps_spans) {
  return schedule::simulate(SimulatedStep(step, cluster).spec(keeps_spans));
}

double least_step_seconds(const ClusterStep& step, std::span<const int64_t> weight_bytes,
                          const Cluster& cluster) {
  const SimulatedStep simulated(step, cluster);
  return std::max(simulated.least_compute_seconds(weight_bytes),
                  schedule::simulate(simulated.least_spec(weight_bytes)).seconds);
}

bool fits_cluster(std::span<const int64_t> bytes, const Cluster& cluster) {
  return std::ranges::all_of(bytes, [&](int64_t own) { return own <= cluster.memory; });
}

}  // namespace strata::apps
