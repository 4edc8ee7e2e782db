#include "sample/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace strata::sample {
namespace {

// Stream of the counter generator that token draws use.
constexpr uint64_t kDrawStream = 0x73616d706c65;  // "sample"

// Descending logit, then ascending id.
struct Before {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

int32_t argmax(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "sample: the logit of id {} is NaN; the weights or an adapter hold NaN or overflow",
              i));
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (std::isinf(logits[best])) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("sample: the largest logit is {}; the weights or an adapter overflow",
                            logits[best]));
  }
  return static_cast<int32_t>(best);
}

// The k first in order, sorted; the others are dropped.
void keep_first(std::vector<int32_t>& ids, size_t k, Before before) {
  if (k < ids.size()) {
    std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k), ids.end(), before);
    ids.resize(k);
  }
  std::sort(ids.begin(), ids.end(), before);
}

}  // namespace

int32_t choose_token(std::span<const float> logits, const SamplingParams& params, uint64_t index) {
  const int32_t best = argmax(logits);
  if (params.temperature == 0.0f || params.top_k == 1) return best;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const Before before{logits};
  const double top = static_cast<double>(logits[static_cast<size_t>(best)]);
  const auto weight = [&](int32_t id) {
    return std::exp((static_cast<double>(logits[static_cast<size_t>(id)]) - top) /
                    params.temperature);
  };
  const bool nucleus = params.top_p < 1.0f;
  if (params.top_k > 0 || nucleus) {
    const size_t k =
        params.top_k > 0 ? std::min(ids.size(), static_cast<size_t>(params.top_k)) : ids.size();
    keep_first(ids, k, before);
  }
  std::vector<double> cumulative(ids.size());
  double total = 0.0;
  for (size_t i = 0; i < ids.size(); ++i) cumulative[i] = total += weight(ids[i]);
  if (nucleus) {
    size_t kept = 1;
    while (kept < ids.size() && cumulative[kept - 1] < static_cast<double>(params.top_p) * total)
      ++kept;
    ids.resize(kept);
    total = cumulative[kept - 1];
  }
  const double draw = Counter{.seed = params.seed, .stream = kDrawStream}.uniform(index) * total;
  const auto end = cumulative.begin() + static_cast<std::ptrdiff_t>(ids.size());
  const auto at = std::upper_bound(cumulative.begin(), end, draw);
  const auto chosen = std::min<std::ptrdiff_t>(at - cumulative.begin(), std::ssize(ids) - 1);
  return ids[static_cast<size_t>(chosen)];
}

void top_ids(std::span<const float> logits, std::span<int32_t> ids) {
  std::vector<int32_t> all(logits.size());
  std::iota(all.begin(), all.end(), 0);
  std::partial_sort(all.begin(), all.begin() + std::ssize(ids), all.end(), Before{logits});
  std::copy_n(all.begin(), ids.size(), ids.begin());
}

}  // namespace strata::sample
