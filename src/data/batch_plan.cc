// SPDX-License-Identifier: Apache-2.0
#include "data/batch_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace strata::data {
namespace {

uint64_t stream_of(const char (&name)[8], uint64_t index) { return hash_name(name, 7) + index; }

// 64 random bits scaled to most + 1 choices, a bias below 2^-32 for real counts.
size_t draw_up_to(int64_t most, const Counter& counter) {
  const auto words = counter.words(static_cast<uint64_t>(most));
  const uint64_t bits = (static_cast<uint64_t>(words[0]) << 32) | words[1];
  const auto scaled = static_cast<unsigned __int128>(bits) * static_cast<uint64_t>(most + 1);
  return static_cast<size_t>(scaled >> 64);
}

int64_t num_eval_of(int64_t count, double fraction) {
  int64_t num_eval = std::llround(static_cast<double>(count) * fraction);
  if (fraction > 0) num_eval = std::max<int64_t>(num_eval, 1);
  return std::clamp<int64_t>(num_eval, 0, std::max<int64_t>(count - 1, 0));
}

}  // namespace

std::vector<int64_t> shuffled_indices(int64_t count, uint64_t seed, uint64_t stream) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  const Counter counter{.seed = seed, .stream = stream};
  // Fisher and Yates.
  for (int64_t i = count - 1; i > 0; --i)
    std::swap(order[static_cast<size_t>(i)], order[draw_up_to(i, counter)]);
  return order;
}

std::vector<std::vector<int64_t>> cut_by_tokens(const std::vector<int64_t>& examples,
                                                const std::vector<int64_t>& lengths, int64_t budget,
                                                int64_t most) {
  std::vector<std::vector<int64_t>> runs;
  int64_t used = 0;
  for (const int64_t example : examples) {
    const int64_t length = lengths[static_cast<size_t>(example)];
    const bool is_full = !runs.empty() && most > 0 && std::ssize(runs.back()) >= most;
    if (runs.empty() || is_full || used + length > budget) {
      runs.emplace_back();
      used = 0;
    }
    runs.back().push_back(example);
    used += length;
  }
  return runs;
}

EvalSplit split_for_eval(int64_t count, double fraction, uint64_t seed) {
  CHECK(fraction >= 0 && fraction < 1, fraction);
  const int64_t num_eval = num_eval_of(count, fraction);
  std::vector<int64_t> order = shuffled_indices(count, seed, stream_of("eval...", 0));
  EvalSplit split{.train = {order.begin() + num_eval, order.end()},
                  .eval = {order.begin(), order.begin() + num_eval}};
  std::sort(split.train.begin(), split.train.end());
  std::sort(split.eval.begin(), split.eval.end());
  return split;
}

BatchPlan::BatchPlan(std::vector<int64_t> lengths, const BatchPlanOptions& options)
    : lengths_(std::move(lengths)), options_(options) {
  CHECK(!lengths_.empty());
  CHECK(options_.batch_tokens > 0 && options_.micro_tokens > 0, options_.batch_tokens,
        options_.micro_tokens);
  CHECK(options_.epochs > 0 || options_.steps > 0, options_.epochs, options_.steps);
  first_step_.push_back(0);
  const auto enough = [&](int64_t epoch) {
    return options_.steps > 0 ? first_step_.back() >= options_.steps : epoch >= options_.epochs;
  };
  for (int64_t epoch = 0; !enough(epoch); ++epoch) {
    ensure_epoch_order(epoch);
    first_step_.push_back(first_step_.back() + static_cast<int64_t>(cuts_.size()) - 1);
  }
  num_steps_ = options_.steps > 0 ? options_.steps : first_step_.back();
}

void BatchPlan::ensure_epoch_order(int64_t epoch) {
  if (epoch == epoch_) return;
  order_ = shuffled_indices(static_cast<int64_t>(lengths_.size()), options_.seed,
                            stream_of("epoch..", static_cast<uint64_t>(epoch)));
  cuts_ = {0};
  for (const auto& run :
       cut_by_tokens(order_, lengths_, options_.batch_tokens, options_.batch_size)) {
    cuts_.push_back(cuts_.back() + static_cast<int64_t>(run.size()));
  }
  epoch_ = epoch;
}

StepPlan BatchPlan::plan_step(int64_t index) {
  CHECK(index >= 0 && index < num_steps_, index, num_steps_);
  const auto after = std::upper_bound(first_step_.begin(), first_step_.end(), index);
  const int64_t epoch = after - first_step_.begin() - 1;
  ensure_epoch_order(epoch);
  const auto at = static_cast<size_t>(index - first_step_[static_cast<size_t>(epoch)]);
  const std::vector<int64_t> examples(order_.begin() + cuts_[at], order_.begin() + cuts_[at + 1]);
  return {.epoch = epoch, .passes = cut_by_tokens(examples, lengths_, options_.micro_tokens)};
}

}  // namespace strata::data
