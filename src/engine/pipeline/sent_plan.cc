// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/sent_plan.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "engine/pipeline/owners.h"
#include "engine/pipeline/round.h"
#include "model/weights/weight_shards.h"

namespace strata::engine {
namespace {

constexpr auto kF32Bytes = dtype_bytes(DType::kF32);

class SentPlanner {
 public:
  SentPlanner(const PipelinePlan& plan, int tensor, Engine& engine, const api::Batch& batch)
      : plan_(plan),
        tensor_(tensor),
        engine_(engine),
        weights_(*engine.model().weights),
        batch_(batch),
        num_dealing_(plan.num_dealing()),
        sent_(static_cast<size_t>(plan.num_ranks() * num_dealing_)) {
    for (int stage = 0; trains_parameters() && stage <= last_stage(); ++stage)
      ownerships_.push_back(ownership_of(plan, stage, tensor, engine));
    borrowed_ = train::divide_borrowed_embedding(weights_, num_dealing_, {tensor, plan.tensor});
  }

  void add_batch() {
    const std::vector<int> backwards = add_microbatches();
    if (num_dealing_ > 1) add_gradient_chains(backwards);
    if (has_copies()) add_expert_chains(backwards);
    if (batch_.want_loss) add_loss_messages();
    for (int stage = 0; weights_.shards() != nullptr && stage <= last_stage(); ++stage) {
      for (int rank = 0; rank < num_dealing_; ++rank) add_weight_fetches(stage, rank);
    }
  }

  void add_step(api::AdapterSlot slot) {
    if (slot == api::AdapterSlot::kBase) {
      add_base_step();
    } else {
      add_adapter_step(engine_.adapter(slot));
    }
  }

  // To what all ranks send: those that have this part of each matrix, to others that have it.
  void add_to(std::vector<SentBytes>& all) const {
    for (int rank = 0; rank < plan_.num_ranks_in_all(); ++rank) {
      if (plan_.tensor_share(rank).rank != tensor_) continue;
      const int place = rank / plan_.num_pipelines() * num_dealing_ + rank % num_dealing_;
      all[static_cast<size_t>(rank)] += sent_[static_cast<size_t>(place)];
    }
  }

 private:
  [[nodiscard]] int last_stage() const { return plan_.num_stages() - 1; }
  [[nodiscard]] int rank_of(int stage) const { return plan_.ranks[static_cast<size_t>(stage)]; }
  // Whether ranks have several copies of divided experts.
  [[nodiscard]] bool has_copies() const { return plan_.expert > 1 && plan_.data > 1; }
  // What a rank of a pipeline sends, by its place among those that deal micro-batches out.
  SentBytes& of(int rank, int peer) {
    return sent_[static_cast<size_t>(rank * num_dealing_ + peer)];
  }
  [[nodiscard]] int64_t tokens_of(size_t s) const {
    return std::ssize(batch_.sequences[s].datum->tokens);
  }
  [[nodiscard]] int64_t targets_of(size_t s) const {
    return tokens_of(s) * batch_.sequences[s].datum->targets_per_token();
  }
  [[nodiscard]] bool trains_parameters() const {
    return batch_.gradients == api::Gradients::kParameters;
  }
  // The adapters that take gradients.
  [[nodiscard]] std::vector<const model::LoraAdapter*> training_adapters() const {
    std::vector<const model::LoraAdapter*> all;
    if (batch_.gradients != api::Gradients::kAdapters) return all;
    for (const api::Sequence& sequence : batch_.sequences) {
      const model::LoraAdapter* adapter = engine_.slot_adapter(sequence.slot);
      const bool is_new = std::find(all.begin(), all.end(), adapter) == all.end();
      if (sequence.gradients && adapter != nullptr && is_new) all.push_back(adapter);
    }
    return all;
  }

  // What the pass of a micro-batch of these sequences says of itself
  // (model/pass/shared_values.h).
  [[nodiscard]] bool trains_before_layers(size_t first, size_t last) const {
    if (!batch_.sequences[first].gradients) return false;
    if (batch_.gradients != api::Gradients::kAdapters) return trains_parameters();
    for (size_t s = first; s < last; ++s) {
      const model::LoraAdapter* adapter = engine_.slot_adapter(batch_.sequences[s].slot);
      if (adapter != nullptr && adapter->trains() && adapter->has_modules_before_layers())
        return true;
    }
    return false;
  }

  // Returns the rank of each that has a backward, among those that deal them out.
  std::vector<int> add_microbatches() {
    Round round;
    round.num_dealt = num_dealing_;
    std::vector<int> backwards;
    of_sequences_.clear();
    while (next_round(plan_, engine_.options().pass_tokens, batch_, round)) {
      const bool backward = batch_.want_loss && round.backward;
      for (int m = 0; m < round.num_microbatches(); ++m) {
        const int data = m % num_dealing_;
        add_microbatch(round, static_cast<size_t>(m), data, backward);
        if (backward) backwards.push_back(data);
      }
    }
    return backwards;
  }
  // States over every border and, of one with a backward, their gradients.
  void add_microbatch(const Round& round, size_t m, int data, bool backward) {
    int64_t tokens = 0;
    for (size_t s = round.firsts[m]; s < round.firsts[m + 1]; ++s) tokens += tokens_of(s);
    of_sequences_.resize(round.firsts[m + 1], data);
    const int64_t width = model::border_width(engine_.config());
    add_crossings(data, Sent::kActivations, tokens * width * dtype_bytes(weights_.compute_dtype()),
                  /*step=*/1);
    if (!backward) return;
    const int64_t values =
        model::border_gradient_width(engine_.config(),
                                     trains_before_layers(round.firsts[m], round.firsts[m + 1])) +
        (batch_.indexer_weight > 0.0f ? 1 : 0);
    add_crossings(data, Sent::kActivationGradients, tokens * values * kF32Bytes, /*step=*/-1);
  }
  // Over every border between ranks.
  void add_crossings(int data, Sent kind, int64_t bytes, int step) {
    for (int stage = 0; stage <= last_stage(); ++stage) {
      const int to = stage + step;
      if (to < 0 || to > last_stage() || rank_of(to) == rank_of(stage)) continue;
      of(rank_of(stage), data)[kind] += bytes;
    }
  }

  [[nodiscard]] int stage_of(int64_t layer, bool is_before_layers) const {
    if (layer >= 0) return plan_.stage_of_layer(layer);
    return is_before_layers ? 0 : last_stage();
  }

  // Values that a micro-batch's backward adds to, of a stage, but of divided experts.
  [[nodiscard]] int64_t num_adapter_values(int stage) const {
    int64_t values = 0;
    for (const model::LoraAdapter* adapter : training_adapters()) {
      for (const model::LoraModule& module : adapter->modules()) {
        if (module.num_experts > 0 && plan_.expert > 1) continue;
        // Parts but the first have A's gradient apart.
        const auto more_parts = std::max<int64_t>(0, std::ssize(module.target->parts) - 1);
        const int64_t count =
            (1 + more_parts) * module.a.shape.num_elements() + module.b.shape.num_elements();
        const bool is_here = stage_of(module.spec.layer, module.is_before_layers()) == stage;
        if (is_here && runs(module.spec.layer)) values += count;
        const bool again = module.spec.layer < 0 && weights_.layers().mtp_layer().has_value();
        if (stage == last_stage() && again && batch_.mtp_weight > 0.0f) values += count;
      }
    }
    return values;
  }
  // How many values of a stage's adapters are of the experts that an expert rank has.
  [[nodiscard]] int64_t num_expert_adapter_values(int stage, int rank) const {
    int64_t values = 0;
    for (const model::LoraAdapter* adapter : training_adapters()) {
      for (const model::LoraModule& module : adapter->modules()) {
        const bool is_here = stage_of(module.spec.layer, module.is_before_layers()) == stage;
        if (module.num_experts > 0 && is_here && runs(module.spec.layer))
          values += num_expert_values(module, rank);
      }
    }
    return values;
  }
  [[nodiscard]] int64_t num_expert_values(const model::LoraModule& module, int rank) const {
    const int64_t of_all = module.a.shape.num_elements() + module.b.shape.num_elements();
    return of_all / module.num_experts *
           plan_.expert_share(rank).own_experts(module.num_experts).count;
  }
  // How many values an owner has of divided experts, or of all other parameters.
  [[nodiscard]] int64_t num_owned_values(int stage, int owner, bool of_divided_experts) const {
    const train::Ownership& owners = ownerships_[static_cast<size_t>(stage)];
    int64_t values = 0;
    for (size_t index = 0; index < weights_.table().size(); ++index) {
      if (is_of_divided_experts(weights_, index) != of_divided_experts) continue;
      const int layer = weights_.table()[index].layer;
      if (runs(layer) && stage_of(layer, weights_.is_before_layers(index)) == stage)
        values += owners.num_values(owner, index);
    }
    return values;
  }
  [[nodiscard]] int64_t num_base_values(int stage, int owner) const {
    const train::Ownership& owners = ownerships_[static_cast<size_t>(stage)];
    const size_t embedding = weights_.embedding_index();
    int64_t values = num_owned_values(stage, owner, /*of_divided_experts=*/false);
    if (stage != last_stage()) return values;
    const auto of_use = [&](size_t index) {
      const bool is_borrowed = stage > 0 && index == embedding;
      return (is_borrowed ? borrowed_ : owners).num_values(owner, index);
    };
    if (engine_.config().tie_word_embeddings) values += of_use(embedding);
    if (batch_.mtp_weight == 0.0f) return values;
    return values + of_use(embedding) + of_use(weights_.head_index());
  }
  [[nodiscard]] bool runs(int64_t layer) const {
    return batch_.mtp_weight > 0.0f || layer != weights_.layers().mtp_layer();
  }

  // From each micro-batch's rank to the next one's, and what the last one has made to all, or to
  // its owners.
  void add_gradient_chains(const std::vector<int>& backwards) {
    for (int stage = 0; stage <= last_stage() && !backwards.empty(); ++stage)
      add_gradient_chain(stage, backwards);
  }
  void add_gradient_chain(int stage, const std::vector<int>& backwards) {
    std::vector<int64_t> owned(static_cast<size_t>(num_dealing_), num_adapter_values(stage));
    for (int owner = 0; owner < num_dealing_ && trains_parameters(); ++owner)
      owned[static_cast<size_t>(owner)] = num_base_values(stage, owner);
    add_chain(stage, backwards, owned, [](int place) { return place; });
  }
  // The same of divided experts, from each copy's ranks to those of the next that runs any.
  void add_expert_chains(const std::vector<int>& backwards) {
    std::vector<int> copies;
    for (const int rank : backwards) {
      if (rank % plan_.expert == 0) copies.push_back(rank / plan_.expert);
    }
    for (int stage = 0; stage <= last_stage() && !copies.empty(); ++stage) {
      for (int rank = 0; rank < plan_.expert; ++rank) add_expert_chain(stage, rank, copies);
    }
  }
  void add_expert_chain(int stage, int rank, const std::vector<int>& copies) {
    const auto place_of = [&](int copy) { return copy * plan_.expert + rank; };
    std::vector<int64_t> owned(static_cast<size_t>(plan_.data),
                               num_expert_adapter_values(stage, rank));
    for (int copy = 0; copy < plan_.data && trains_parameters(); ++copy)
      owned[static_cast<size_t>(copy)] =
          num_owned_values(stage, place_of(copy), /*of_divided_experts=*/true);
    add_chain(stage, copies, owned, place_of);
  }
  // A chain over ranks that are at these places, with what each of them has or owns of it.
  void add_chain(int stage, const std::vector<int>& backwards, const std::vector<int64_t>& owned,
                 FunctionRef<int(int rank)> place_of) {
    const int64_t all = trains_parameters()
                            ? std::accumulate(owned.begin(), owned.end(), int64_t{0})
                            : owned.front();
    for (size_t i = 0; i + 1 < backwards.size(); ++i) {
      if (backwards[i] == backwards[i + 1]) continue;
      of(rank_of(stage), place_of(backwards[i]))[Sent::kGradients] += all * kF32Bytes;
    }
    const int last = backwards.back();
    for (int owner = 0; owner < static_cast<int>(owned.size()); ++owner) {
      if (owner == last) continue;
      of(rank_of(stage), place_of(last))[Sent::kGradients] +=
          owned[static_cast<size_t>(owner)] * kF32Bytes;
    }
  }

  // Calls body with the actions of a stage on a rank's own micro-batches of a round.
  template <typename Body>
  void for_each_action(int stage, const Round& round, Body body) const {
    for (const schedule::Slot& slot : plan_.table.rows[static_cast<size_t>(rank_of(stage))]) {
      for (const schedule::Action& action : slot.actions()) {
        if (action.stage == stage && round.any_has(action.microbatch)) body(action);
      }
    }
  }
  // How often a rank's passes have a unit of its stage come.
  [[nodiscard]] std::vector<int64_t> count_fetches(const model::ShardUnits& units, int stage,
                                                   int rank) const {
    std::vector<int64_t> fetches(units.bytes.size());
    model::ShardWalk walk(units.bytes.size());
    for_each_turn(units, stage, rank, [&](const model::ShardTurn& turn) {
      walk.apply_turn(turn, [](size_t) {}, [&](size_t unit) { ++fetches[unit]; });
    });
    return fetches;
  }
  // Calls body with the turns of a rank's passes with the weights of its stage.
  template <typename Body>
  void for_each_turn(const model::ShardUnits& units, int stage, int rank, Body body) const {
    const EngineOptions& options = engine_.options();
    Round round;
    round.dealt = rank;
    round.num_dealt = num_dealing_;
    round.num_at_once = plan_.expert;
    while (next_round(plan_, options.pass_tokens, batch_, round)) {
      for_each_action(stage, round, [&](const schedule::Action& action) {
        const model::ShardPass pass = {
            .has_tokens = round.has(action.microbatch),
            .mtp = runs_mtp(round, action.microbatch),
            .again = options.regions.makes_stage() && !options.recompute.keeps_all()};
        if (action.op == schedule::Op::kForward) {
          for_each_forward_turn(units, pass, body);
        } else if (schedule::is_backward(action.op) && batch_.want_loss && round.backward) {
          for_each_backward_turn(units, pass, body);
        }
      });
    }
  }
  // A sequence's last token has no prediction, so micro-batches of single tokens that run at once
  // run none.
  [[nodiscard]] bool runs_mtp(const Round& round, int own) const {
    const std::span<const size_t> firsts = round.firsts_of_group(own);
    bool any = false;
    for (size_t s = firsts.front(); s < firsts.back(); ++s) any = any || tokens_of(s) > 1;
    return any && batch_.mtp_weight > 0.0f;
  }
  // What it asks the others of its stage for, and gets from them.
  void add_weight_fetches(int stage, int rank) {
    const int expert_rank = rank % plan_.expert;
    const model::ShardUnits units =
        weights_.shard_units(plan_.layers[static_cast<size_t>(stage)], expert_rank);
    const std::vector<int64_t> fetches = count_fetches(units, stage, rank);
    for (size_t unit = 0; unit < fetches.size(); ++unit) {
      for (int owner = 0; owner < num_dealing_; ++owner)
        add_parts_fetched(stage, rank, owner, fetches[unit],
                          part_of(units.bytes[unit], {owner, num_dealing_}));
      for (int copy = 0; copy < plan_.data; ++copy)
        add_parts_fetched(stage, rank, copy * plan_.expert + expert_rank, fetches[unit],
                          part_of(units.expert_bytes[unit], {copy, plan_.data}));
    }
  }
  void add_parts_fetched(int stage, int rank, int owner, int64_t times, const BytePart& part) {
    if (owner == rank) return;
    of(rank_of(stage), owner)[Sent::kParameters] += times * part.size();
    of(rank_of(stage), rank)[Sent::kControl] += times * num_questions(part) * kQuestionBytes;
  }

  // Among the ranks of the stage that has them, and from there to those of its pipeline.
  void add_loss_lists(int stage, FunctionRef<int64_t(size_t s)> values_of) {
    std::vector<int64_t> of_data(static_cast<size_t>(num_dealing_), 0);
    int64_t all = 0;
    for (size_t s = 0; s < batch_.sequences.size(); ++s) {
      of_data[static_cast<size_t>(of_sequences_[s])] += values_of(s);
      all += values_of(s);
    }
    for (int data = 0; data < num_dealing_; ++data) {
      of(rank_of(stage), data)[Sent::kResults] +=
          kF32Bytes *
          ((num_dealing_ - 1) * of_data[static_cast<size_t>(data)] + (plan_.num_ranks() - 1) * all);
    }
  }
  void add_loss_messages() {
    const int lists = batch_.mtp_weight > 0.0f ? 3 : 2;
    add_loss_lists(last_stage(), [&](size_t s) {
      return lists * targets_of(s) + (batch_.want_top ? tokens_of(s) : 0);
    });
    if (batch_.indexer_weight == 0.0f) return;
    add_loss_lists(0, [&](size_t s) {
      const bool backward =
          batch_.sequences[s].gradients && batch_.gradients != api::Gradients::kNone;
      return backward ? tokens_of(s) : 0;
    });
  }

  // Adds to what every rank sends.
  void add_control(int64_t bytes) {
    for (SentBytes& rank : sent_) rank[Sent::kControl] += bytes;
  }
  // Gradients of an adapter's experts, to the ranks that have others.
  void add_expert_gradients(const model::LoraAdapter& adapter) {
    if (plan_.expert == 1) return;
    for (const model::LoraModule& module : adapter.modules()) {
      if (module.num_experts == 0) continue;
      const int stage = stage_of(module.spec.layer, module.is_before_layers());
      for (int rank = 0; rank < num_dealing_; ++rank) {
        of(rank_of(stage), rank)[Sent::kGradients] +=
            num_expert_values(module, rank) * kF32Bytes * (plan_.expert - 1);
      }
    }
  }
  void add_adapter_step(const model::LoraAdapter& adapter) {
    add_expert_gradients(adapter);
    const auto sums = 2 * std::ssize(adapter.modules());
    add_control(sums * static_cast<int64_t>(sizeof(double)) * (plan_.num_ranks() - 1));
    const model::LoraModule* embedding = adapter.find_module(-1, model::kEmbedding);
    if (!engine_.config().use_mtp || embedding == nullptr) return;
    if (rank_of(0) == rank_of(last_stage())) return;
    const int64_t count = embedding->a.shape.num_elements() + embedding->b.shape.num_elements();
    for (const int rank : {rank_of(0), rank_of(last_stage())}) {
      for (int data = 0; data < num_dealing_; ++data)
        of(rank, data)[Sent::kGradients] += count * kF32Bytes;
    }
  }

  // What the last stage accumulates of the embedding, to the first one's owners, and what these
  // make of it, to who reads it.
  void add_borrowed_embedding() {
    const int num_uses = train::num_borrowed_uses(engine_.config());
    const size_t index = weights_.embedding_index();
    const int64_t row = weights_.table()[index].num_cols() * kF32Bytes;
    for (int first = 0; first < num_dealing_ && last_stage() > 0 && num_uses > 0; ++first) {
      const train::OwnedRows& owned = ownerships_.front().rows(first, index);
      std::vector<train::RowPiece> pieces;
      train::append_row_pieces(index, owned, weights_.table()[index].num_cols(),
                               weights_.compute_dtype(), pieces);
      for (int last = 0; last < num_dealing_; ++last) {
        if (rank_of(0) == rank_of(last_stage()) && first == last) continue;
        of(rank_of(last_stage()), last)[Sent::kGradients] +=
            num_uses * borrowed_.rows(last, index).shared_with(owned).count * row;
        of(rank_of(0), first)[Sent::kParameters] += bytes_sent(pieces, {last, num_dealing_});
      }
    }
  }
  [[nodiscard]] int64_t bytes_sent(const std::vector<train::RowPiece>& pieces,
                                   const train::Share& to) const {
    int64_t bytes = 0;
    for (const train::RowPiece& piece : pieces) {
      if (is_sent(weights_, piece, to))
        bytes += piece.shape.num_elements() * dtype_bytes(piece.dtype);
    }
    return bytes;
  }

  // Sums of squares of rows that are not the last of their parameter, and what each owner's step
  // has made of its own.
  void add_owned_parameters(int stage) {
    const train::Ownership& owners = ownerships_[static_cast<size_t>(stage)];
    for (int owner = 0; owner < num_dealing_; ++owner) {
      SentBytes& sent = of(rank_of(stage), owner);
      for (size_t index = 0; index < weights_.table().size(); ++index) {
        const train::OwnedRows& rows = owners.rows(owner, index);
        const bool is_last = rows.empty() || rows.end() == owners.items()[index].rows;
        if (!is_last) sent[Sent::kControl] += static_cast<int64_t>(sizeof(double));
      }
      const std::vector<train::RowPiece> pieces =
          pieces_of(weights_, owners, owner, /*of_divided_experts=*/false);
      for (int to = 0; to < num_dealing_; ++to)
        if (to != owner) sent[Sent::kParameters] += bytes_sent(pieces, {to, num_dealing_});
      if (has_copies()) sent[Sent::kParameters] += bytes_of_experts_sent(owners, owner);
    }
  }

  // To each of the other copies.
  [[nodiscard]] int64_t bytes_of_experts_sent(const train::Ownership& owners, int owner) const {
    const std::vector<train::RowPiece> pieces =
        pieces_of(weights_, owners, owner, /*of_divided_experts=*/true);
    int64_t bytes = 0;
    for (int to = 0; to < plan_.data; ++to)
      if (to != owner / plan_.expert) bytes += bytes_sent(pieces, {to, plan_.data});
    return bytes;
  }

  void add_base_step() {
    const auto sums = std::ssize(weights_.table());
    const int to_next_tensor = tensor_ + 1 < plan_.tensor ? 1 : 0;
    add_control(sums * static_cast<int64_t>(sizeof(double)) *
                (plan_.num_ranks() - 1 + num_dealing_ - 1 + plan_.tensor - 1 + to_next_tensor));
    add_borrowed_embedding();
    for (int stage = 0; stage <= last_stage() && num_dealing_ > 1; ++stage)
      add_owned_parameters(stage);
    add_expert_loads();
  }
  // By which the biases of routers move.
  void add_expert_loads() {
    for (const size_t index : engine_.base_trainer().router_bias_indices()) {
      const model::Parameter& bias = weights_.table()[index];
      const int stage = stage_of(bias.layer, /*is_before_layers=*/false);
      for (int data = 0; data < num_dealing_; ++data) {
        of(rank_of(stage), data)[Sent::kControl] +=
            bias.shape[0] * static_cast<int64_t>(sizeof(double)) * (num_dealing_ - 1);
      }
    }
  }

  const PipelinePlan& plan_;
  const int tensor_;  // whose ranks it plans
  Engine& engine_;
  const model::ModelWeights& weights_;
  const api::Batch& batch_;
  const int num_dealing_;
  std::vector<SentBytes> sent_;               // of each rank of one tensor
  std::vector<int> of_sequences_;             // data ranks that they are dealt to
  std::vector<train::Ownership> ownerships_;  // of each stage, where parameters train
  train::Ownership borrowed_;
};

}  // namespace

std::vector<SentBytes> plan_sends(const PipelinePlan& plan, Engine& engine, const api::Batch& batch,
                                  std::span<const api::AdapterSlot> stepped) {
  CHECK(!batch.want_hidden_states && !batch.want_logits);
  std::vector<SentBytes> all(static_cast<size_t>(plan.num_ranks_in_all()));
  for (int tensor = 0; tensor < plan.tensor; ++tensor) {
    SentPlanner planner(plan, tensor, engine, batch);
    planner.add_batch();
    for (const api::AdapterSlot slot : stepped) planner.add_step(slot);
    planner.add_to(all);
  }
  return all;
}

}  // namespace strata::engine
