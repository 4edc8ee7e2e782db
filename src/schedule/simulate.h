// SPDX-License-Identifier: Apache-2.0
// The simulator: how long an optimizer step takes on ranks that messages join, from the action
// lists that ranks run. A rank runs its queue, an action as soon as what it needs has arrived. A
// send waits for nobody and takes nothing of the rank's own time; a rank's messages leave one after
// the other, each for as long as its bytes take, and arrive by the latency later. Everything is
// determined by the input, and the work grows as the numbers of actions and messages do.
//   Simulation step = simulate({.table = table, .stages = works, .rounds = {{512, 512}}, ...});
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "schedule/action.h"

namespace strata::schedule {

struct Link {
  double latency_s = 0.0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
};

// What joins ranks: `link` those of a node, `node_link` those of two nodes. Ranks are put on nodes
// in order, so many on each.
struct Links {
  Link link = {};
  Link node_link = {};
  int ranks_per_node = 0;  // 0: all ranks are on one node
  [[nodiscard]] bool is_one_node(int first, int second) const {
    return ranks_per_node == 0 || first / ranks_per_node == second / ranks_per_node;
  }
  [[nodiscard]] const Link& between(int first, int second) const {
    return is_one_node(first, second) ? link : node_link;
  }
};

// What a stage does for each token of a micro-batch, in seconds and bytes.
struct StageWork {
  double forward_s = 0.0;
  double input_grad_s = 0.0;   // of I
  double recompute_s = 0.0;    // the part of it that comes first, and adds to no gradients
  double weight_grad_s = 0.0;  // of W; B has both
  double state_bytes = 0.0;    // to the next stage
  double grad_bytes = 0.0;     // of the gradient of its input, to the stage before
  // Where several ranks have parts of its weights (SimulationSpec::alike): what each waits in I and
  // in B for the turns of the others; and for the others of a chain, that begins when they have
  // done so many tokens.
  double turns_s = 0.0;
  double chain_s = 0.0, chain_tokens = std::numeric_limits<double>::infinity();
  // What they wait for messages among themselves, in F, and in I or B.
  double forward_wait_s = 0.0, backward_wait_s = 0.0;
  // And of that what is the same for any number of tokens: of an action.
  double forward_latency_s = 0.0, backward_latency_s = 0.0;
};

// Gradients of a stage that data ranks add to in turn. A backward has parts of equal length, as its
// layers are: each, but for what it recomputes first, begins when the rank of the micro-batch
// before has sent what it made of the part, and is sent on at its end. What the last micro-batch
// has made goes to all ranks of the stage: all of it, or an equal share that each of them owns.
struct ChainedGradients {
  int num_parts = 1;
  double bytes = 0.0;  // of all parts together
};

// Messages that ranks exchange around the optimizer step, each to all others of its group, which
// wait for them: among ranks that have the same stages, among those of one pipeline, or among those
// that have parts of the same weights. Where only one rank of the pipeline is sent to, `receiver`
// is its number in there.
struct Exchange {
  enum class Among : uint8_t { kData, kPipeline, kAlike };
  static constexpr int kAll = -1;
  Among among = Among::kPipeline;
  std::vector<double> bytes = {};  // [ranks of a pipeline] of each message; 0: sends none
  int receiver = kAll;
};

struct SimulationSpec {
  const Table& table;  // of a round of one pipeline: verified, with its transfers
  std::vector<StageWork> stages = {};
  // The tokens of each round's micro-batches. Micro-batch i of a round is run by data rank i mod
  // `data`, as number i div `data` of its table; actions on micro-batches that are not there are
  // left out.
  std::vector<std::vector<int64_t>> rounds = {};
  int data = 1;  // pipelines; rank r of one that has number d is rank r data + d of what comes back
  // Ranks that have parts of a stage's weights, or of its experts, and so run an action together:
  // here they are one. So many of them are neighbours; the rest of them are as far from these as
  // the neighbours of all `data` ranks are many.
  int alike = 1, neighbours = 1;
  // The last of those that are one here, counted from the first.
  [[nodiscard]] int last_alike() const {
    return neighbours - 1 + (alike / neighbours - 1) * data * neighbours;
  }
  std::vector<ChainedGradients> gradients = {};  // of each stage; read where data > 1
  bool owns_shares = false;  // of the last gradients each data rank gets its share
  std::vector<Exchange> before_step = {}, after_step = {};
  std::vector<double> step_s = {};  // [ranks of a pipeline] the optimizer step's own time
  Links links = {};
  bool keeps_spans = false;  // for a timeline
};

// What a rank did and when, waiting for messages in the midst of it counted in.
struct SimulatedSpan {
  enum class Kind : uint8_t { kAction, kStep, kExchange };
  Kind kind = Kind::kAction;
  Action action = {};  // with the number of the micro-batch among those of all rounds
  double start_s = 0.0, end_s = 0.0;
};

struct SimulatedRank {
  double compute_s = 0.0;   // without waiting
  double transfer_s = 0.0;  // that what it sends is on its way, each message counted by itself
  double end_s = 0.0;
  double boundary_bytes = 0.0, gradient_bytes = 0.0, exchanged_bytes = 0.0;  // that it sends
  std::vector<SimulatedSpan> spans = {};                                     // in order
};

struct Simulation {
  double seconds = 0.0;       // until the last rank is done
  double bubble_share = 0.0;  // of all ranks' time that which they do not compute in
  std::vector<SimulatedRank> ranks = {};
};

Simulation simulate(const SimulationSpec& spec);

}  // namespace strata::schedule
