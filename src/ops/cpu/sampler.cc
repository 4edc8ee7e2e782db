// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"
#include "ops/log_softmax.h"

namespace strata::ops::cpu {
namespace {

constexpr size_t kBlock = 64;       // logits whose weights are computed together
constexpr size_t kMaxGroups = 256;  // partial sums of the weights of a row
constexpr uint64_t kTokenStream =
    0x73616d706c652d31;  // keeps draws apart from other uses of a seed
constexpr uint64_t kDrawStream = 0x647261772d31;

struct Candidate {
  float logit;
  int32_t id;
};

bool comes_before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

[[noreturn]] void throw_not_finite(std::span<const float> logits) {
  size_t bad = 0;
  while (std::isfinite(logits[bad])) ++bad;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("sample: the logit of token {} is {}, want a finite number; the weights "
                          "or the adapter have diverged, or hold NaN",
                          bad, logits[bad]));
}

// The largest of 64 logits; false when one of them is not finite.
bool compute_finite_block_max(const float* logits, float& max) {
  constexpr size_t kLanes = 8;  // loops of fixed length: the compiler turns them into vectors
  float most[kLanes];
  float zero[kLanes] = {};  // NaN as soon as a logit is not finite
  std::copy_n(logits, kLanes, most);
  for (size_t i = 0; i < kBlock; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) {
      most[l] = logits[i + l] > most[l] ? logits[i + l] : most[l];
      zero[l] += logits[i + l] * 0.0f;
    }
  }
  max = *std::max_element(most, most + kLanes);
  return std::all_of(zero, zero + kLanes, [](float z) { return z == 0.0f; });
}

// The 64 logits from `begin` on; where there are fewer, `padded` gets them, and the first again.
const float* block_from(std::span<const float> logits, size_t begin, float (&padded)[kBlock]) {
  if (logits.size() - begin >= kBlock) return &logits[begin];
  std::fill(padded, padded + kBlock, logits[begin]);
  std::copy(logits.begin() + static_cast<std::ptrdiff_t>(begin), logits.end(), padded);
  return padded;
}

// The largest logit and the lowest id that has it; throws where one is not finite.
Candidate checked_argmax(std::span<const float> logits) {
  CHECK(!logits.empty());
  Candidate best = {-std::numeric_limits<float>::infinity(), 0};
  size_t best_block = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    float padded[kBlock];
    float max = 0;
    if (!compute_finite_block_max(block_from(logits, begin, padded), max)) throw_not_finite(logits);
    if (max > best.logit) {
      best.logit = max;
      best_block = begin;
    }
  }
  while (logits[best_block] != best.logit) ++best_block;
  best.id = static_cast<int32_t>(best_block);
  return best;
}

void check_finite(std::span<const float> logits) { checked_argmax(logits); }

constexpr float kLowest = -88.02f;  // weighs nothing

// e^z for kLowest <= z <= 0, to 3e-7: the scheme of ops/cpu/simd.h without fma and without a
// branch, so that the compiler keeps four lanes busy. Below z = -87.7 the power of two is 2^-127,
// whose bits are those of zero.
inline float exp_of_nonpositive(float z) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const float n = (z * 0x1.715476p+0f + kRound) - kRound;
  const float r = (z - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  float q = 0x1.6a1f62p-10f * r + 0x1.123ccap-7f;
  q = q * r + 0x1.555904p-5f;
  q = q * r + 0x1.55548ep-3f;
  q = q * r + 0x1.fffffcp-2f;
  const float p = (r * r * q + r) + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// The softmax of a row before it is normalised.
class Weights {
 public:
  Weights(std::span<const float> logits, float max, float temperature)
      : logits_(logits), max_(max), temperature_(temperature) {}

  [[nodiscard]] float scaled(float logit) const {
    const float z = (logit - max_) / temperature_;
    return z > kLowest ? z : kLowest;
  }
  [[nodiscard]] double of(float logit) const { return exp_of_nonpositive(scaled(logit)); }

  // Sum of logits [begin, end): blocks of 64, each added up in four lanes.
  [[nodiscard]] double sum(size_t begin, size_t end) const {
    double total = 0;
    for (size_t i = begin; i < end; i += kBlock) {
      float weights[kBlock];
      write_block_weights(i, weights);
      double lane[4] = {};
      for (size_t j = 0; j < kBlock; j += 4) {
        for (size_t l = 0; l < 4; ++l) lane[l] += weights[j + l];
      }
      total += (lane[0] + lane[2]) + (lane[1] + lane[3]);
    }
    return total;
  }

  // Weights of logits [begin, begin + 64); zeros past the end of the row.
  void write_block_weights(size_t begin, float* out) const {
    float z[kBlock];
    const size_t count = std::min(kBlock, logits_.size() - begin);
    if (count < kBlock) std::fill(z, z + kBlock, -std::numeric_limits<float>::infinity());
    std::copy_n(logits_.begin() + static_cast<std::ptrdiff_t>(begin), count, z);
    for (size_t j = 0; j < kBlock; ++j) z[j] = scaled(z[j]);
    for (size_t j = 0; j < kBlock; ++j) out[j] = exp_of_nonpositive(z[j]);
  }

 private:
  std::span<const float> logits_;
  float max_;
  float temperature_;
};

// The row's weights in at most 256 partial sums, so that a draw looks into one of them only.
struct GroupedSum {
  explicit GroupedSum(const Weights& weights, size_t vocab)
      : size((vocab + kMaxGroups * kBlock - 1) / (kMaxGroups * kBlock) * kBlock) {
    for (size_t begin = 0; begin < vocab; begin += size) {
      sums[count] = weights.sum(begin, std::min(vocab, begin + size));
      total += sums[count++];
    }
  }
  // The group in which the cumulative weight passes `left`, which becomes what is left for it.
  [[nodiscard]] size_t find_weight_group(double& left) const {
    size_t group = 0;
    while (group + 1 < count && left >= sums[group]) left -= sums[group++];
    return group;
  }

  size_t size;  // logits in a group
  size_t count = 0;
  double sums[kMaxGroups];
  double total = 0;
};

// The token at which the cumulative weight, in ascending id, passes u * total.
int32_t draw_from_all(const Weights& weights, const GroupedSum& groups, size_t vocab, double u) {
  double left = u * groups.total;
  const size_t group = groups.find_weight_group(left);
  size_t chosen =
      vocab;  // rounding may leave a rest: then the group's last weight that is not zero
  const size_t end = std::min(vocab, (group + 1) * groups.size);
  for (size_t begin = group * groups.size; begin < end; begin += kBlock) {
    float block[kBlock];
    weights.write_block_weights(begin, block);
    for (size_t j = 0; j < kBlock; ++j) {
      if (block[j] == 0.0f) continue;
      chosen = begin + j;
      if (left < block[j]) return static_cast<int32_t>(chosen);
      left -= block[j];
    }
  }
  CHECK(chosen < vocab, chosen, vocab);
  return static_cast<int32_t>(chosen);
}

std::vector<Candidate> first_candidates(std::span<const float> logits, size_t count) {
  std::vector<Candidate> candidates;
  candidates.reserve(count);
  for (size_t i = 0; i < count; ++i) candidates.push_back({logits[i], static_cast<int32_t>(i)});
  return candidates;
}

std::vector<Candidate> top_k_by_selection(std::span<const float> logits, size_t k) {
  std::vector<Candidate> kept = first_candidates(logits, logits.size());
  std::nth_element(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(k) - 1, kept.end(),
                   comes_before);
  kept.resize(k);
  return kept;
}

// A heap of the best so far with its last on top; a later id does not displace an equal logit.
std::vector<Candidate> top_k_by_heap(std::span<const float> logits, size_t k) {
  std::vector<Candidate> kept = first_candidates(logits, k);
  std::make_heap(kept.begin(), kept.end(), comes_before);
  for (size_t i = k; i < logits.size(); ++i) {
    if (logits[i] <= kept.front().logit) continue;
    std::pop_heap(kept.begin(), kept.end(), comes_before);
    kept.back() = {logits[i], static_cast<int32_t>(i)};
    std::push_heap(kept.begin(), kept.end(), comes_before);
  }
  return kept;
}

// The k candidates that come first, in no order.
std::vector<Candidate> top_k_candidates(std::span<const float> logits, size_t k) {
  return k < logits.size() / 64 ? top_k_by_heap(logits, k) : top_k_by_selection(logits, k);
}

double total_weight(const Weights& weights, std::span<const Candidate> kept) {
  double total = 0;
  for (const Candidate& candidate : kept) total += weights.of(candidate.logit);
  return total;
}

// Cuts `kept` to those that top-p keeps; `total` is the weight of everything that top-k left. In
// sorted order, place i stays if the weight before it is less than top_p: found by halving, without
// sorting all.
void cut_to_top_p(const Weights& weights, std::vector<Candidate>& kept, double total,
                  double top_p) {
  const auto at = [&](size_t i) { return kept.begin() + static_cast<std::ptrdiff_t>(i); };
  size_t begin = 0;  // places up to this one stay
  size_t end = kept.size();
  double before = 0;  // weight of places [0, begin)
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(at(begin), at(middle), at(end), comes_before);
    const double half = total_weight(weights, std::span(kept).subspan(begin, middle - begin));
    if ((before + half) / total < top_p) {
      before += half;
      begin = middle;
    } else {
      end = middle;
    }
  }
  kept.resize(begin + 1);
}

// Those whose weights are at least exp(-reach), and perhaps a few more: `reach` is rounded.
std::vector<Candidate> candidates_within(const Weights& weights, std::span<const float> logits,
                                         double reach) {
  const double least = -(reach + 1e-3);
  std::vector<Candidate> kept;
  for (size_t i = 0; i < logits.size(); ++i)
    if (weights.scaled(logits[i]) >= least) kept.push_back({logits[i], static_cast<int32_t>(i)});
  return kept;
}

// Top-p over the whole vocabulary. Only tokens within ln(V / (1 - p)) of the maximum are looked at:
// all others together weigh less than (1 - p) times the largest, so they lie beyond the nucleus.
std::vector<Candidate> top_p_candidates(const Weights& weights, std::span<const float> logits,
                                        float top_p) {
  const double total = GroupedSum(weights, logits.size()).total;
  const double reach = std::log(static_cast<double>(logits.size()) / (1.0 - top_p));
  std::vector<Candidate> kept = candidates_within(weights, logits, reach);
  cut_to_top_p(weights, kept, total, top_p);
  return kept;
}

// Min-p over the whole vocabulary, and perhaps a few more.
std::vector<Candidate> min_p_candidates(const Weights& weights, std::span<const float> logits,
                                        float min_p) {
  return candidates_within(weights, logits, -std::log(static_cast<double>(min_p)));
}

void cut_to_min_p(const Weights& weights, std::vector<Candidate>& kept, float min_p) {
  std::erase_if(kept, [&](const Candidate& c) { return weights.of(c.logit) < min_p; });
}

// Sorts the candidates by id, the order in which their weights are summed, and draws one.
int32_t draw_candidate(const Weights& weights, std::vector<Candidate>& kept, double u) {
  std::sort(kept.begin(), kept.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double left = u * total_weight(weights, kept);
  int32_t chosen = -1;
  for (const Candidate& candidate : kept) {
    const double weight = weights.of(candidate.logit);
    if (weight == 0) continue;
    chosen = candidate.id;
    if (left < weight) break;
    left -= weight;
  }
  CHECK(chosen >= 0, chosen);
  return chosen;
}

void check_params(const SamplingParams& params) {
  CHECK(std::isfinite(params.temperature) && params.temperature >= 0, params.temperature);
  CHECK(params.top_p > 0, params.top_p);
  CHECK(params.min_p >= 0 && params.min_p <= 1, params.min_p);
}

// Which parameters cut candidates off.
struct Cuts {
  size_t top_k;
  bool k, p, min_p;

  Cuts(const SamplingParams& params, size_t vocab)
      : top_k(static_cast<size_t>(std::max<int64_t>(0, params.top_k))),
        k(top_k > 0 && top_k < vocab),
        p(params.top_p < 1),
        min_p(params.min_p > 0) {}
  [[nodiscard]] bool none() const { return !k && !p && !min_p; }
};

// What is left where there is a cut.
std::vector<Candidate> candidates_after_cuts(const Weights& weights, std::span<const float> logits,
                                             const SamplingParams& params, const Cuts& cuts) {
  std::vector<Candidate> kept = cuts.k   ? top_k_candidates(logits, cuts.top_k)
                                : cuts.p ? top_p_candidates(weights, logits, params.top_p)
                                         : min_p_candidates(weights, logits, params.min_p);
  if (cuts.k && cuts.p) cut_to_top_p(weights, kept, total_weight(weights, kept), params.top_p);
  if (cuts.min_p) cut_to_min_p(weights, kept, params.min_p);
  return kept;
}

}  // namespace

int32_t choose_token(std::span<const float> logits, const SamplingParams& params,
                     uint64_t step_index) {
  check_params(params);
  const Candidate best = checked_argmax(logits);
  if (params.temperature == 0) return best.id;
  const Weights weights(logits, best.logit, params.temperature);
  const double u = Counter{.seed = params.seed, .stream = kTokenStream}.uniform(step_index);
  const Cuts cuts(params, logits.size());
  if (cuts.none())
    return draw_from_all(weights, GroupedSum(weights, logits.size()), logits.size(), u);
  std::vector<Candidate> kept = candidates_after_cuts(weights, logits, params, cuts);
  return draw_candidate(weights, kept, u);
}

int32_t choose_allowed_token(std::span<float> logits, std::span<const uint32_t> allowed,
                             const SamplingParams& params, uint64_t step_index) {
  check_finite(logits);
  const auto is_allowed = [&](size_t id) { return (allowed[id / 32] >> (id % 32) & 1) != 0; };
  size_t count = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (is_allowed(id)) logits[count++] = logits[id];
  }
  if (count == 0)
    throw Error(ErrorCode::kInvalidArgument,
                "sample: no token of the vocabulary may come next; nothing fits what the answer "
                "has to fit");
  int32_t before = choose_token(logits.first(count), params, step_index);
  size_t id = 0;  // the allowed token that has so many allowed ones before it
  while (!is_allowed(id) || before-- > 0) ++id;
  return static_cast<int32_t>(id);
}

void draw_from_row(std::span<const float> logits, float temperature, uint64_t seed,
                   uint64_t first_draw, std::span<int32_t> ids) {
  CHECK(std::isfinite(temperature) && temperature >= 0, temperature);
  const Candidate best = checked_argmax(logits);
  if (temperature == 0) return std::fill(ids.begin(), ids.end(), best.id);
  const Weights weights(logits, best.logit, temperature);
  const GroupedSum groups(weights, logits.size());
  const Counter counter{.seed = seed, .stream = kDrawStream};
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = draw_from_all(weights, groups, logits.size(), counter.uniform(first_draw + i));
}

void write_topk_of_row(std::span<const float> logits, const float* lse, std::span<int32_t> ids,
                       std::span<float> logprobs) {
  CHECK(ids.size() == logprobs.size() && ids.size() <= logits.size(), ids.size(), logprobs.size(),
        logits.size());
  if (ids.empty()) return;
  check_finite(logits);
  std::vector<Candidate> kept = top_k_candidates(logits, ids.size());
  std::sort(kept.begin(), kept.end(), comes_before);
  for (size_t i = 0; i < kept.size(); ++i) {
    ids[i] = kept[i].id;
    logprobs[i] = logprob(kept[i].logit, lse);
  }
}

}  // namespace strata::ops::cpu
