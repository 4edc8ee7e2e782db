// SPDX-License-Identifier: Apache-2.0
#include "schedule/simulate.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace strata::schedule {
namespace {

constexpr double kNever = -1.0;

class Simulator {
 public:
  explicit Simulator(const SimulationSpec& spec)
      : spec_(spec),
        rank_of_(ranks_of_stages(spec.table)),
        data_(spec.data),
        num_ranks_(spec.table.num_ranks() * spec.data) {
    CHECK(std::ssize(spec.stages) == spec.table.num_stages, spec.stages.size());
    CHECK(data_ == 1 || spec.gradients.size() == spec.stages.size(), spec.gradients.size());
    for (const std::vector<int64_t>& round : spec.rounds) {
      CHECK(std::ssize(round) <= int64_t{spec.table.num_microbatches} * data_, round.size());
      first_of_round_.push_back(num_microbatches_);
      num_microbatches_ += static_cast<int>(round.size());
    }
    const size_t items = spec.stages.size() * static_cast<size_t>(num_microbatches_);
    input_arrival_.assign(items, kNever);
    output_grad_arrival_.assign(items, kNever);
    chains_.resize(spec.stages.size());
    waits_for_turn_.assign(spec.stages.size() * static_cast<size_t>(data_), false);
    states_.resize(static_cast<size_t>(num_ranks_));
    result_.ranks.resize(states_.size());
  }

  Simulation run() {
    run_queues();
    for (size_t rank = 0; rank < states_.size(); ++rank)
      states_[rank].time = std::max(states_[rank].time, states_[rank].gradients_arrival);
    for (const Exchange& exchange : spec_.before_step) run_exchange(exchange);
    run_step();
    for (const Exchange& exchange : spec_.after_step) run_exchange(exchange);
    double busy = 0.0;
    for (size_t rank = 0; rank < states_.size(); ++rank) {
      result_.ranks[rank].end_s = states_[rank].time;
      result_.seconds = std::max(result_.seconds, states_[rank].time);
      busy += result_.ranks[rank].compute_s;
    }
    const double all = result_.seconds * static_cast<double>(num_ranks_);
    result_.bubble_share = all > 0.0 ? 1.0 - busy / all : 0.0;
    return std::move(result_);
  }

 private:
  // A rank in the midst of its queue.
  struct RankState {
    size_t round = 0, slot = 0, part = 0;  // the action to run: in a place of a round's row
    double time = 0.0;                     // until when it is at work
    double port_time = 0.0;                // and until when its messages leave
    double gradients_arrival = 0.0;        // of what the last micro-batches have made
  };
  // Where the gradients of a stage are: what the micro-batch before has made of each part.
  struct Chain {
    int next = 0;  // the micro-batch whose backward adds to them
    std::vector<double> arrivals = {};
  };

  [[nodiscard]] int rank_of(int stage, int data) const {
    return rank_of_[static_cast<size_t>(stage)] * data_ + data;
  }
  // The number among all ranks of the run that the first of those has which are one here.
  [[nodiscard]] int first_rank_of(int rank) const {
    return rank / data_ * data_ * spec_.alike + rank % data_ * spec_.neighbours;
  }
  [[nodiscard]] size_t item(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(num_microbatches_) +
           static_cast<size_t>(microbatch);
  }
  [[nodiscard]] bool is_last_stage(int stage) const { return stage + 1 == spec_.table.num_stages; }
  SimulatedRank& result_of(int rank) { return result_.ranks[static_cast<size_t>(rank)]; }
  RankState& state_of(int rank) { return states_[static_cast<size_t>(rank)]; }

  // Sends what is ready now, and returns when it has arrived.
  double send(int from, int to, double ready, double bytes, double SimulatedRank::* counter) {
    const Link& link = spec_.links.between(first_rank_of(from), first_rank_of(to));
    const double length = bytes / link.bytes_per_s;
    double& port_time = state_of(from).port_time;
    port_time = std::max(port_time, ready) + length;
    result_of(from).transfer_s += link.latency_s + length;
    result_of(from).*counter += bytes;
    return port_time + link.latency_s;
  }

  // Ranks that may go on are in a list; one that waits is put there by what it waits for.
  void run_queues() {
    for (int rank = num_ranks_ - 1; rank >= 0; --rank) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const int rank = runnable_.back();
      runnable_.pop_back();
      while (find_next_action(rank) && try_run_action(rank)) ++state_of(rank).part;
    }
    for (const RankState& state : states_)  // was the table verified?
      CHECK(state.round == spec_.rounds.size(), state.round, state.slot);
  }

  // Goes to the next place that has an action; false behind the last round.
  bool find_next_action(int rank) {
    RankState& state = state_of(rank);
    const std::vector<Slot>& row = spec_.table.rows[static_cast<size_t>(rank / data_)];
    while (state.round < spec_.rounds.size()) {
      if (state.slot < row.size() && state.part < row[state.slot].actions().size()) return true;
      state.part = 0;
      if (++state.slot < row.size()) continue;
      state.slot = 0;
      ++state.round;
    }
    return false;
  }

  // False: it waits.
  bool try_run_action(int rank) {
    const RankState& state = state_of(rank);
    const std::vector<Slot>& row = spec_.table.rows[static_cast<size_t>(rank / data_)];
    Action action = row[state.slot].actions()[state.part];
    const int place = rank % data_ + action.microbatch * data_;  // in the round
    const std::vector<int64_t>& round = spec_.rounds[state.round];
    if (place >= std::ssize(round)) return true;
    action.microbatch = first_of_round_[state.round] + place;
    const auto tokens = static_cast<double>(round[static_cast<size_t>(place)]);
    if (is_transfer(action.op)) {
      if (is_send(action.op)) send_over_border(rank, action, tokens);
      return true;  // receives are waited for by what needs them
    }
    return try_compute(rank, action, tokens);
  }

  void send_over_border(int rank, const Action& action, double tokens) {
    const StageWork& work = spec_.stages[static_cast<size_t>(action.stage)];
    const bool forward = action.op == Op::kSendForward;
    const int to_stage = action.stage + (forward ? 1 : -1);
    const int to = rank_of(to_stage, rank % data_);
    const double arrival =
        send(rank, to, state_of(rank).time, tokens * (forward ? work.state_bytes : work.grad_bytes),
             &SimulatedRank::boundary_bytes);
    set_arrival(forward, to_stage, action.microbatch, arrival);
    runnable_.push_back(to);
  }
  void set_arrival(bool forward, int stage, int microbatch, double time) {
    (forward ? input_arrival_ : output_grad_arrival_)[item(stage, microbatch)] = time;
  }

  // When what an action takes from another stage is there; kNever while nobody knows.
  [[nodiscard]] double arrival_of_input(const Action& action) const {
    if (action.op == Op::kForward)
      return action.stage == 0 ? 0.0 : input_arrival_[item(action.stage, action.microbatch)];
    if (!is_backward(action.op) || is_last_stage(action.stage)) return 0.0;
    return output_grad_arrival_[item(action.stage, action.microbatch)];
  }

  [[nodiscard]] double seconds_of_token(const Action& action) const {
    const StageWork& work = spec_.stages[static_cast<size_t>(action.stage)];
    double seconds = 0.0;
    if (action.op == Op::kForward) seconds += work.forward_s;
    if (is_backward(action.op)) seconds += work.input_grad_s;
    if (has_weight_grad(action.op)) seconds += work.weight_grad_s;
    return seconds;
  }

  // What an action waits where several ranks run it together: for the turns of the others, and for
  // messages among them.
  [[nodiscard]] double seconds_of_turns(const Action& action, double tokens) const {
    const StageWork& work = spec_.stages[static_cast<size_t>(action.stage)];
    if (!is_backward(action.op)) return 0.0;
    return tokens * work.turns_s + std::min(tokens, work.chain_tokens) * work.chain_s;
  }
  [[nodiscard]] double seconds_of_messages(const Action& action, double tokens) const {
    const StageWork& work = spec_.stages[static_cast<size_t>(action.stage)];
    if (action.op == Op::kForward) return tokens * work.forward_wait_s + work.forward_latency_s;
    return is_backward(action.op) ? tokens * work.backward_wait_s + work.backward_latency_s : 0.0;
  }

  bool try_compute(int rank, const Action& action, double tokens) {
    const double arrival = arrival_of_input(action);
    if (arrival == kNever) return false;
    const bool is_chained = data_ > 1 && is_backward(action.op);
    if (is_chained && !is_turn_of(rank, action)) return false;
    RankState& state = state_of(rank);
    const double start = std::max(state.time, arrival);
    const double length = tokens * seconds_of_token(action);
    const double messages = seconds_of_messages(action, tokens);
    const double waiting = seconds_of_turns(action, tokens) + messages;
    state.time = is_chained ? run_chained_backward(rank, action, tokens, start, waiting)
                            : start + length + waiting;
    result_of(rank).compute_s += length;
    result_of(rank).transfer_s += messages;
    add_span(rank, {.action = action, .start_s = start, .end_s = state.time});
    mark_neighbour_on_rank(rank, action);
    return true;
  }

  // What the next stage takes is there at once where that is on the same rank.
  void mark_neighbour_on_rank(int rank, const Action& action) {
    if (action.op == Op::kWeightGrad) return;
    const bool forward = action.op == Op::kForward;
    const int to_stage = action.stage + (forward ? 1 : -1);
    if (to_stage < 0 || to_stage == spec_.table.num_stages) return;
    if (rank_of(to_stage, rank % data_) == rank)
      set_arrival(forward, to_stage, action.microbatch, state_of(rank).time);
  }

  // Whether the backward of the micro-batch before has run; else it is to wake this one.
  [[nodiscard]] bool is_turn_of(int rank, const Action& action) {
    if (chains_[static_cast<size_t>(action.stage)].next == action.microbatch) return true;
    waits_for_turn_[static_cast<size_t>(action.stage * data_ + rank % data_)] = true;
    return false;
  }

  // Returns when the backward ends, in which so many seconds are waiting.
  double run_chained_backward(int rank, const Action& action, double tokens, double start,
                              double waiting) {
    Chain& chain = chains_[static_cast<size_t>(action.stage)];
    const ChainedGradients& gradients = spec_.gradients[static_cast<size_t>(action.stage)];
    const bool is_last = action.microbatch + 1 == num_microbatches_;
    const int next = is_last ? rank : rank_of(action.stage, data_rank_of(action.microbatch + 1));
    chain.arrivals.resize(static_cast<size_t>(gradients.num_parts), 0.0);
    const double part_tokens = tokens / gradients.num_parts;
    const double recompute =
        part_tokens * spec_.stages[static_cast<size_t>(action.stage)].recompute_s;
    const double in_turn =
        part_tokens * seconds_of_token(action) - recompute + waiting / gradients.num_parts;
    double time = start;
    for (double& arrival : chain.arrivals) {
      time = std::max(time + recompute, arrival) + in_turn;
      arrival = time;
      if (is_last) {
        send_to_all(rank, action.stage, time, gradients.bytes / gradients.num_parts);
      } else if (next != rank) {
        arrival = send(rank, next, time, gradients.bytes / gradients.num_parts,
                       &SimulatedRank::gradient_bytes);
      }
    }
    ++chain.next;
    wake_next_of_chain(action.stage);
    return time;
  }

  void wake_next_of_chain(int stage) {
    const Chain& chain = chains_[static_cast<size_t>(stage)];
    if (chain.next == num_microbatches_) return;
    const int data = data_rank_of(chain.next);
    std::vector<bool>::reference waits = waits_for_turn_[static_cast<size_t>(stage * data_ + data)];
    if (!waits) return;
    waits = false;
    runnable_.push_back(rank_of(stage, data));
  }

  // Each round is dealt out from the first data rank on.
  [[nodiscard]] int data_rank_of(int microbatch) const {
    const auto round = std::upper_bound(first_of_round_.begin(), first_of_round_.end(), microbatch);
    return (microbatch - *(round - 1)) % data_;
  }

  void send_to_all(int rank, int stage, double time, double part_bytes) {
    const double bytes = spec_.owns_shares ? part_bytes / data_ : part_bytes;
    for (int data = 0; data < data_; ++data) {
      const int to = rank_of(stage, data);
      if (to == rank) continue;
      double& arrival = state_of(to).gradients_arrival;
      arrival = std::max(arrival, send(rank, to, time, bytes, &SimulatedRank::gradient_bytes));
    }
  }

  // Each sends to all others of its group in turn; who waits for several has the last one.
  void run_exchange(const Exchange& exchange) {
    if (exchange.among == Exchange::Among::kAlike) return exchange_alike(exchange);
    const bool among_data = exchange.among == Exchange::Among::kData;
    const int pipeline = spec_.table.num_ranks();
    const int num_groups = among_data ? pipeline : data_, size = among_data ? data_ : pipeline;
    for (int group = 0; group < num_groups; ++group) {
      const auto rank_at = [&](int i) {
        return among_data ? group * data_ + i : i * data_ + group;
      };
      exchange_in_group(exchange, size, rank_at);
    }
  }
  template <typename RankAt>
  void exchange_in_group(const Exchange& exchange, int size, RankAt rank_at) {
    std::vector<double> starts, arrivals(static_cast<size_t>(size), 0.0);
    for (int i = 0; i < size; ++i) starts.push_back(state_of(rank_at(i)).time);
    for (int i = 0; i < size; ++i) {
      const double bytes = exchange.bytes[static_cast<size_t>(rank_at(i) / data_)];
      if (bytes == 0.0) continue;
      for (int to = 0; to < size; ++to) {
        const bool is_meant = exchange.receiver == Exchange::kAll || exchange.receiver == to;
        if (to == i || !is_meant) continue;
        double& arrival = arrivals[static_cast<size_t>(to)];
        arrival = std::max(arrival, send(rank_at(i), rank_at(to), starts[static_cast<size_t>(i)],
                                         bytes, &SimulatedRank::exchanged_bytes));
      }
    }
    for (int i = 0; i < size; ++i) {
      double& time = state_of(rank_at(i)).time;
      const double end = std::max(time, arrivals[static_cast<size_t>(i)]);
      if (end > time)
        add_span(rank_at(i),
                 {.kind = SimulatedSpan::Kind::kExchange, .start_s = time, .end_s = end});
      time = end;
    }
  }

  // Each of those that are one here sends to all others of them.
  void exchange_alike(const Exchange& exchange) {
    for (int rank = 0; rank < num_ranks_ && spec_.alike > 1; ++rank) {
      const double bytes = exchange.bytes[static_cast<size_t>(rank / data_)];
      if (bytes == 0.0) continue;
      const int first = first_rank_of(rank);
      const Link& link = spec_.links.between(first, first + spec_.last_alike());
      const double sent = (spec_.alike - 1) * bytes;
      const double length = link.latency_s + sent / link.bytes_per_s;
      double& time = state_of(rank).time;
      add_span(rank,
               {.kind = SimulatedSpan::Kind::kExchange, .start_s = time, .end_s = time + length});
      time += length;
      result_of(rank).transfer_s += length;
      result_of(rank).exchanged_bytes += sent;
    }
  }

  void run_step() {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const size_t of_pipeline = static_cast<size_t>(rank / data_);
      const double length = spec_.step_s.empty() ? 0.0 : spec_.step_s[of_pipeline];
      double& time = state_of(rank).time;
      if (length > 0.0) {
        add_span(rank,
                 {.kind = SimulatedSpan::Kind::kStep, .start_s = time, .end_s = time + length});
      }
      time += length;
      result_of(rank).compute_s += length;
    }
  }

  void add_span(int rank, const SimulatedSpan& span) {
    if (spec_.keeps_spans) result_of(rank).spans.push_back(span);
  }

  const SimulationSpec& spec_;
  std::vector<int> rank_of_;  // [stages] of a pipeline
  int data_;
  int num_ranks_;
  std::vector<int> first_of_round_;                          // micro-batches before it
  int num_microbatches_ = 0;                                 // of all rounds
  std::vector<double> input_arrival_, output_grad_arrival_;  // [stages x micro-batches]
  std::vector<Chain> chains_;                                // [stages]
  std::vector<bool> waits_for_turn_;                         // [stages x data] in the chain
  std::vector<RankState> states_;                            // [ranks]
  std::vector<int> runnable_;
  Simulation result_;
};

}  // namespace

Simulation simulate(const SimulationSpec& spec) { return Simulator(spec).run(); }

}  // namespace strata::schedule
