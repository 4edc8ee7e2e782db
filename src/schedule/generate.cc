// SPDX-License-Identifier: Apache-2.0
#include "schedule/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace strata::schedule {
namespace {

constexpr int64_t kMaxForwards = 1'000'000;

constexpr struct {
  Kind kind;
  std::string_view name;
} kNames[] = {{Kind::kGpipe, "gpipe"},
              {Kind::kCircular, "circular"},
              {Kind::k1f1b, "1f1b"},
              {Kind::kInterleaved, "interleaved"},
              {Kind::kZb1p, "zb1p"}};

[[noreturn]] void refuse(const Spec& spec, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("schedule {}: {} ranks, {} micro-batches, {} chunks a rank: {}",
                          kind_name(spec.kind), spec.num_ranks, spec.num_microbatches,
                          spec.num_chunks, what));
}

bool has_rounds(Kind kind) { return kind == Kind::kInterleaved || kind == Kind::kZb1p; }

int num_rounds(const Spec& spec) { return std::max(1, spec.num_microbatches / spec.num_ranks); }

void check_chunks_and_rounds(const Spec& spec) {
  const bool has_one_chunk = spec.kind == Kind::kGpipe || spec.kind == Kind::k1f1b;
  if (has_one_chunk && spec.num_chunks != 1) {
    refuse(spec, "it has one chunk a rank; circular and interleaved have more");
  }
  if (spec.kind == Kind::kCircular && spec.num_microbatches % spec.num_ranks != 0) {
    refuse(spec, "the micro-batches must be a multiple of the ranks");
  }
  if (has_rounds(spec.kind) && spec.num_microbatches % num_rounds(spec) != 0) {
    refuse(spec, fmt::format("the micro-batches must be a multiple of the rounds, which are {} "
                             "(micro-batches div ranks)",
                             num_rounds(spec)));
  }
}

void check_spec(const Spec& spec) {
  if (spec.num_ranks < 1 || spec.num_microbatches < 1 || spec.num_chunks < 1) {
    refuse(spec, "each must be at least 1");
  }
  const int64_t num_stages = int64_t{spec.num_ranks} * spec.num_chunks;
  if (num_stages > kMaxForwards || num_stages * spec.num_microbatches > kMaxForwards) {
    refuse(spec, fmt::format("at most {} forwards are planned", kMaxForwards));
  }
  check_chunks_and_rounds(spec);
  if (spec.forwarding_delay < 1 || spec.forwarding_delay > 2) {
    refuse(spec, fmt::format("got a forwarding delay of {}, want 1 or 2", spec.forwarding_delay));
  }
  if (spec.forwarding_delay == 1) return;
  if (spec.kind != Kind::kCircular) refuse(spec, "only circular has a forwarding delay");
  if (spec.num_microbatches < 2 * spec.num_ranks) {
    refuse(spec, "with a forwarding delay of 2 it needs twice as many micro-batches as ranks");
  }
}

// Writes one rank's queue: each call appends the next micro-batch of its chunk.
class Row {
 public:
  Row(const Spec& spec, int rank)
      : num_ranks_(spec.num_ranks), rank_(rank), next_(static_cast<size_t>(spec.num_chunks)) {}

  void add_next_action(Op op, int chunk) {
    Next& next = next_[static_cast<size_t>(chunk)];
    int& microbatch = op == Op::kForward      ? next.forward
                      : op == Op::kWeightGrad ? next.weight_grad
                                              : next.backward;
    slots_.emplace_back(Action{op, chunk * num_ranks_ + rank_, microbatch});
    ++microbatch;
  }
  void add_next_action(Op op, int chunk, int count) {
    for (int i = 0; i < count; ++i) add_next_action(op, chunk);
  }
  std::vector<Slot> take() { return std::move(slots_); }

 private:
  struct Next {
    int forward = 0, backward = 0, weight_grad = 0;
  };
  int num_ranks_, rank_;
  std::vector<Next> next_;
  std::vector<Slot> slots_;
};

void add_breadth_first(const Spec& spec, Row& row) {
  for (int c = 0; c < spec.num_chunks; ++c)
    row.add_next_action(Op::kForward, c, spec.num_microbatches);
  for (int c = spec.num_chunks - 1; c >= 0; --c) {
    row.add_next_action(Op::kBackward, c, spec.num_microbatches);
  }
}

// With fewer micro-batches than ranks the warm-up is all of them.
void add_1f1b(const Spec& spec, int rank, Row& row) {
  const int num_warmup = std::min(spec.num_microbatches, spec.num_ranks - rank);
  row.add_next_action(Op::kForward, 0, num_warmup);
  for (int i = 0; i < spec.num_microbatches; ++i) {
    row.add_next_action(Op::kBackward, 0);
    if (num_warmup + i < spec.num_microbatches) row.add_next_action(Op::kForward, 0);
  }
}

// Under interleaved and zb1p a rank has steps: forward i goes to chunk (i div round size) mod
// chunks, and backward i, which is num_warmup steps behind, to the same counted from the last.
int num_steps(const Spec& spec) { return spec.num_chunks * spec.num_microbatches; }

int round_size(const Spec& spec) { return spec.num_microbatches / num_rounds(spec); }

int forward_chunk(const Spec& spec, int step) { return step / round_size(spec) % spec.num_chunks; }

int backward_chunk(const Spec& spec, int step) {
  return spec.num_chunks - 1 - forward_chunk(spec, step);
}

// `per_hop`: for each rank behind this one.
int num_warmup_steps(const Spec& spec, int rank, int per_hop) {
  const int hops = spec.num_ranks - 1 - rank;
  return std::min((spec.num_chunks - 1) * round_size(spec) + per_hop * hops, num_steps(spec));
}

void add_interleaved(const Spec& spec, int rank, Row& row) {
  const int num_warmup = num_warmup_steps(spec, rank, /*per_hop=*/2);
  for (int step = 0; step < num_steps(spec) + num_warmup; ++step) {
    const int back = step - num_warmup;
    if (step < num_steps(spec)) row.add_next_action(Op::kForward, forward_chunk(spec, step));
    if (back >= 0) row.add_next_action(Op::kBackward, backward_chunk(spec, back));
  }
}

// Runs weight gradient i `rank` steps behind its backward: rank r of a pipeline has r places before
// its first.
void add_zb1p(const Spec& spec, int rank, Row& row) {
  const int num_warmup = num_warmup_steps(spec, rank, /*per_hop=*/1);
  for (int step = 0; step < num_steps(spec) + num_warmup + rank; ++step) {
    const int back = step - num_warmup;
    const int weights = back - rank;
    if (step < num_steps(spec)) row.add_next_action(Op::kForward, forward_chunk(spec, step));
    if (back >= 0 && back < num_steps(spec))
      row.add_next_action(Op::kInputGrad, backward_chunk(spec, back));
    if (weights >= 0) row.add_next_action(Op::kWeightGrad, backward_chunk(spec, weights));
  }
}

std::vector<Slot> make_row(const Spec& spec, int rank) {
  Row row(spec, rank);
  switch (spec.kind) {
    case Kind::kGpipe:
    case Kind::kCircular:
      add_breadth_first(spec, row);
      break;
    case Kind::k1f1b:
      add_1f1b(spec, rank, row);
      break;
    case Kind::kInterleaved:
      add_interleaved(spec, rank, row);
      break;
    case Kind::kZb1p:
      add_zb1p(spec, rank, row);
      break;
  }
  return row.take();
}

}  // namespace

Table generate(const Spec& spec) {
  check_spec(spec);
  Table table{.num_stages = spec.num_ranks * spec.num_chunks,
              .num_microbatches = spec.num_microbatches};
  for (int rank = 0; rank < spec.num_ranks; ++rank) table.rows.push_back(make_row(spec, rank));
  return table;
}

bool parse_kind(std::string_view name, Kind& kind) {
  for (const auto& row : kNames) {
    if (row.name != name) continue;
    kind = row.kind;
    return true;
  }
  return false;
}

std::string_view kind_name(Kind kind) {
  for (const auto& row : kNames) {
    if (row.kind == kind) return row.name;
  }
  return "";
}

}  // namespace strata::schedule
