// SPDX-License-Identifier: Apache-2.0
// BatchPlan: which examples make up each optimizer step, and how a step is cut into passes. A pure
// function of the lengths, the options and the step's index, so a resumed run sees the batches it
// would have seen. An epoch is a fresh shuffle, drawn from (seed, epoch); its examples are taken in
// that order, and a step never spans two epochs. Not thread-safe: it remembers the last epoch.
#pragma once
#include <cstdint>
#include <vector>

namespace strata::data {

struct BatchPlanOptions {
  int64_t batch_tokens = 8192;  // at most so many a step, but at least one example
  int64_t batch_size = 0;       // at most so many examples a step; 0: any number
  int64_t micro_tokens = 2048;  // at most so many a pass, but at least one example
  int64_t epochs = 1;
  int64_t steps = 0;  // > 0: run so many steps, through as many epochs as it takes
  uint64_t seed = 0;
};

struct StepPlan {
  int64_t epoch = 0;
  std::vector<std::vector<int64_t>> passes;  // example indices, in order
};

class BatchPlan {
 public:
  // lengths[i] >= 1: positions of example i. At least one example.
  BatchPlan(std::vector<int64_t> lengths, const BatchPlanOptions& options);

  [[nodiscard]] int64_t num_steps() const { return num_steps_; }
  // 0 <= index < num_steps().
  StepPlan plan_step(int64_t index);

 private:
  void ensure_epoch_order(int64_t epoch);

  std::vector<int64_t> lengths_;
  BatchPlanOptions options_;
  int64_t num_steps_ = 0;
  std::vector<int64_t> first_step_;  // of each epoch, and one past the last
  int64_t epoch_ = -1;               // whose order_ and cuts_ are held
  std::vector<int64_t> order_;       // a permutation of the examples
  std::vector<int64_t> cuts_;  // order_'s index where each step begins, and its size at the end
};

// 0..count-1 in an order drawn from (seed, stream).
std::vector<int64_t> shuffled_indices(int64_t count, uint64_t seed, uint64_t stream);

struct EvalSplit {
  std::vector<int64_t> train;  // ascending
  std::vector<int64_t> eval;   // ascending
};

// Sets aside count * fraction examples, rounded; at least one when 0 < fraction and count > 1,
// never all.
EvalSplit split_for_eval(int64_t count, double fraction, uint64_t seed);

// Cuts a list of examples into runs of at most `budget` tokens, at least one example each, and of
// at most `most` examples (0: any number), in order.
std::vector<std::vector<int64_t>> cut_by_tokens(const std::vector<int64_t>& examples,
                                                const std::vector<int64_t>& lengths, int64_t budget,
                                                int64_t most = 0);

}  // namespace strata::data
