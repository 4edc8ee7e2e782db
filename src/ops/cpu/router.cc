// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {
namespace {

constexpr double kNormEpsilon = 1e-20;  // DeepSeek's, in the sum of chosen scores

void softmax(float* x, int64_t n) {
  const float largest = *std::max_element(x, x + n);
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - largest);
    sum += static_cast<double>(x[i]);
  }
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(static_cast<double>(x[i]) / sum);
}

void sigmoid(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = 1.0f / (1.0f + std::exp(-x[i]));
}

// softplus(l) = max(l, 0) + log1p(exp(-|l|)); in double, so that nothing is lost before the root.
void sqrt_softplus(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const auto l = static_cast<double>(x[i]);
    const double softplus = std::max(l, 0.0) + std::log1p(std::exp(-std::abs(l)));
    x[i] = static_cast<float>(std::sqrt(softplus));
  }
}

void logits_to_scores(RouterScores scores, float* x, int64_t n) {
  switch (scores) {
    case RouterScores::kSoftmax:
      return softmax(x, n);
    case RouterScores::kSigmoid:
      return sigmoid(x, n);
    case RouterScores::kSqrtSoftplus:
      return sqrt_softplus(x, n);
    case RouterScores::kLogit:
      return;
  }
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// d s / d l of a score that is its own logit's alone. With s^2 = softplus(l): sigmoid(l) = 1 -
// exp(-s^2), so d s / d l = (1 - exp(-s^2)) / 2 s, which is s / 2 where s^2 vanishes.
// A weight that is the sigmoid of the score has that slope.
double score_slope(RouterScores scores, double s) {
  if (scores == RouterScores::kLogit) return sigmoid(s) * sigmoid(-s);
  if (scores == RouterScores::kSigmoid) return s * (1.0 - s);
  return s == 0.0 ? 0.0 : -std::expm1(-s * s) / (2.0 * s);
}

constexpr float kDropped = -std::numeric_limits<float>::infinity();
// Marks what was chosen already; candidates are never NaN.
constexpr float kTaken = std::numeric_limits<float>::quiet_NaN();

// The index of the largest candidate, the lowest among equals.
int64_t argmax_untaken(const float* x, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isnan(x[i]) && (best < 0 || x[i] > x[best])) best = i;
  }
  return best;
}

// A score that is not a number, as a diverged model has, comes last.
float candidate(float score) { return std::isnan(score) ? kDropped : score; }

// The sum of the two best candidates of a group, or its only one, or the best alone.
float group_score(const float* group, int64_t size, bool one_best) {
  if (size == 1) return candidate(group[0]);
  const int64_t first = argmax_untaken(group, size);
  if (one_best) return candidate(group[first]);
  float second = kDropped;
  for (int64_t i = 0; i < size; ++i) {
    if (i != first) second = std::max(second, group[i]);
  }
  return candidate(group[first] + second);
}

// Groups that do not take part get -inf.
void mask_groups(const RouterArgs& args, float* choice, int64_t experts, float* sums) {
  if (args.top_groups == args.num_groups) return;
  const int64_t size = experts / args.num_groups;
  for (int64_t g = 0; g < args.num_groups; ++g)
    sums[g] = group_score(choice + g * size, size, args.one_best);
  for (int64_t taken = 0; taken < args.top_groups; ++taken) {
    sums[argmax_untaken(sums, args.num_groups)] = kTaken;
  }
  for (int64_t g = 0; g < args.num_groups; ++g) {
    if (!std::isnan(sums[g])) std::fill_n(choice + g * size, size, kDropped);
  }
}

void choose_experts(const RouterArgs& args, float* choice, int64_t experts, int32_t* ids) {
  for (int64_t k = 0; k < args.top_k; ++k) {
    const int64_t best = argmax_untaken(choice, experts);
    ids[k] = static_cast<int32_t>(best);
    choice[best] = kTaken;
  }
}

double sum_of_chosen(const float* scores, const int32_t* ids, int64_t count) {
  double sum = 0.0;
  for (int64_t k = 0; k < count; ++k) sum += static_cast<double>(scores[ids[k]]);
  return sum;
}

double divisor(const RouterArgs& args, const float* scores, const int32_t* ids) {
  if (!args.norm) return 1.0;
  const double sum = sum_of_chosen(scores, ids, args.top_k);
  return args.scores == RouterScores::kSoftmax ? sum : sum + kNormEpsilon;
}

void write_weights(const RouterArgs& args, const float* scores, const int32_t* ids,
                   float* weights) {
  if (args.scores == RouterScores::kLogit) {
    for (int64_t k = 0; k < args.top_k; ++k) {
      weights[k] = static_cast<float>(sigmoid(static_cast<double>(scores[ids[k]])));
    }
    return;
  }
  const double factor = args.scale / divisor(args, scores, ids);
  for (int64_t k = 0; k < args.top_k; ++k) {
    weights[k] = static_cast<float>(static_cast<double>(scores[ids[k]]) * factor);
  }
}

// The gradient of one token's logits.
//   weight_k = scale s_k / S; S is the sum of the chosen scores with norm, else 1
//   softmax: d l_i = s_i (d s_i - sum_j d s_j s_j); the others: d l_i = d s_i s'_i
// or, of a score that is the logit, weight_k = sigmoid(l_k).
void compute_token_d_logits(const RouterArgs& args, const float* scores, const int32_t* ids,
                            const float* d_weights, int64_t experts, double* d_logits) {
  std::fill_n(d_logits, experts, 0.0);
  const double sum = divisor(args, scores, ids);
  double mean = 0.0;  // sum_j d weight_j s_j / S
  for (int64_t k = 0; k < args.top_k; ++k) {
    mean += static_cast<double>(d_weights[k]) * static_cast<double>(scores[ids[k]]) / sum;
  }
  const bool softmax_scores = args.scores == RouterScores::kSoftmax;
  for (int64_t k = 0; k < args.top_k; ++k) {
    const auto s = static_cast<double>(scores[ids[k]]);
    const double d_score =
        args.scale * (static_cast<double>(d_weights[k]) - (args.norm ? mean : 0.0)) / sum;
    d_logits[ids[k]] = softmax_scores ? d_score * s : d_score * score_slope(args.scores, s);
  }
  // With norm the chosen ones' shift cancels: only their ratios matter.
  if (!softmax_scores || args.norm) return;
  for (int64_t i = 0; i < experts; ++i) {
    d_logits[i] -= static_cast<double>(scores[i]) * args.scale * mean;
  }
}

// What experts are chosen by.
void write_candidates(const RouterArgs& args, const float* scores, int64_t experts, float* choice) {
  for (int64_t i = 0; i < experts; ++i) {
    choice[i] = candidate(args.bias.empty() ? scores[i] : scores[i] + args.bias.f32()[i]);
  }
}

void store_rounded(const double* values, int64_t row, TensorView y) {
  for (int64_t i = 0; i < y.cols(); ++i) {
    const auto value = static_cast<float>(values[i]);
    if (y.dtype == DType::kF32) {
      y.f32()[row * y.cols() + i] = value;
    } else {
      y.bf16()[row * y.cols() + i] = to_bf16(value);
    }
  }
}

}  // namespace

void route(CpuBackend& backend, const RouterArgs& args, TensorView logits,
           IndexView<int32_t> expert_ids, TensorView weights) {
  const HostAccess access(backend.allocator());
  const int64_t experts = logits.cols();
  const Scratch::Mark mark(backend.scratch());
  const int64_t each = experts + args.num_groups;
  float* work = backend.scratch().take(DType::kF32, {backend.pool().num_threads(), each}).f32();
  backend.pool().run(logits.rows(), [&](int64_t begin, int64_t end, int worker) {
    float* choice = work + worker * each;
    for (int64_t t = begin; t < end; ++t) {
      float* scores = logits.f32() + t * experts;
      int32_t* ids = expert_ids.numbers().data() + t * args.top_k;
      logits_to_scores(args.scores, scores, experts);
      write_candidates(args, scores, experts, choice);
      mask_groups(args, choice, experts, choice + experts);
      choose_experts(args, choice, experts, ids);
      write_weights(args, scores, ids, weights.f32() + t * args.top_k);
    }
  });
}

void route_to_given_experts(CpuBackend& backend, const RouterArgs& args, TensorView logits,
                            IndexView<int32_t> expert_ids, TensorView weights) {
  const HostAccess access(backend.allocator());
  const int64_t experts = logits.cols();
  backend.pool().run(logits.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* scores = logits.f32() + t * experts;
      const int32_t* ids = expert_ids.numbers().data() + t * args.top_k;
      logits_to_scores(args.scores, scores, experts);
      for (int64_t k = 0; k < args.top_k; ++k) DCHECK(0 <= ids[k] && ids[k] < experts, ids[k]);
      write_weights(args, scores, ids, weights.f32() + t * args.top_k);
    }
  });
}

void route_backward(CpuBackend& backend, const RouterArgs& args, TensorView scores,
                    IndexView<int32_t> expert_ids, TensorView d_weights, TensorView d_logits) {
  const HostAccess access(backend.allocator());
  const int64_t experts = scores.cols();
  const Scratch::Mark mark(backend.scratch());
  auto* work = static_cast<double*>(backend.scratch().take(backend.pool().num_threads() * experts *
                                                           static_cast<int64_t>(sizeof(double))));
  backend.pool().run(scores.rows(), [&](int64_t begin, int64_t end, int worker) {
    double* d = work + worker * experts;
    for (int64_t t = begin; t < end; ++t) {
      compute_token_d_logits(args, scores.f32() + t * experts,
                             expert_ids.numbers().data() + t * args.top_k,
                             d_weights.f32() + t * args.top_k, experts, d);
      store_rounded(d, t, d_logits);
    }
  });
}

void look_up_experts(CpuBackend& backend, TensorView table, std::span<const int32_t> tokens,
                     IndexView<int32_t> expert_ids) {
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  const int64_t top_k = table.cols();
  for (size_t t = 0; t < tokens.size(); ++t) {
    const float* experts = table.f32() + tokens[t] * top_k;
    int32_t* ids = expert_ids.numbers().data() + t * static_cast<size_t>(top_k);
    for (int64_t k = 0; k < top_k; ++k) ids[k] = static_cast<int32_t>(experts[k]);
  }
}

void balance_bias(CpuBackend& backend, std::span<const int64_t> loads, double rate,
                  TensorView bias) {
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const auto step = static_cast<float>(rate);
  for (size_t e = 0; e < loads.size(); ++e) {
    const int64_t above_mean = loads[e] * std::ssize(loads) - total;
    if (above_mean > 0) bias.f32()[e] -= step;
    if (above_mean < 0) bias.f32()[e] += step;
  }
}

namespace {

// firsts[e] = the first row of expert e, where rows are in the order of experts.
void compute_first_rows(std::span<const int32_t> expert_ids, std::span<int64_t> firsts) {
  std::fill(firsts.begin(), firsts.end(), 0);
  for (const int32_t e : expert_ids) ++firsts[static_cast<size_t>(e)];
  std::exclusive_scan(firsts.begin(), firsts.end(), firsts.begin(), int64_t{0});
}

}  // namespace

void sort_routes(CpuBackend& backend, int64_t top_k, IndexView<int32_t> expert_ids,
                 TensorView weights, const RouteRows& rows) {
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  const std::span<const int32_t> ids = expert_ids.numbers();
  const std::span<int64_t> ends = rows.expert_ends.numbers();
  compute_first_rows(ids, ends);  // the next free rows, for now
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    const auto row = static_cast<size_t>(ends[static_cast<size_t>(ids[slot])]++);
    rows.token_of_row.numbers()[row] = static_cast<int32_t>(static_cast<int64_t>(slot) / top_k);
    rows.row_of_slot.numbers()[slot] = static_cast<int32_t>(row);
    rows.row_weights.f32()[row] = weights.f32()[slot];
  }
}

}  // namespace strata::ops::cpu
