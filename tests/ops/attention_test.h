// SPDX-License-Identifier: Apache-2.0
// Data, calls and derived error bounds for the tests of attention. T tokens, N query heads, M
// key/value heads, H key width, U value width.
#pragma once
#include <memory>
#include <numeric>
#include <vector>

#include "ops/attention.h"
#include "ops/ref/attention.h"
#include "tests/ops/op_test.h"

namespace strata::ops::testing {

struct AttentionCase {
  std::vector<int64_t> lengths;
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 16;
  double spread = 1.0;   // standard deviation of q and k
  double v_scale = 1.0;  // standard deviation of v
  // U: the values are the first U columns of the keys (latent attention); 0: values of their own, H
  // wide.
  int64_t latent_dim = 0;
  int64_t window = 0;
  bool in_chunks = false;
  bool has_sinks = false;
  double score_cap = 0;

  [[nodiscard]] int64_t num_tokens() const {
    return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  }
  [[nodiscard]] float scale() const {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  }
  [[nodiscard]] Shape q_shape() const { return {num_tokens(), num_heads, head_dim}; }
  [[nodiscard]] int64_t value_dim() const { return latent_dim == 0 ? head_dim : latent_dim; }
  [[nodiscard]] Shape out_shape() const { return {num_tokens(), num_heads, value_dim()}; }
  [[nodiscard]] Shape k_shape() const { return {num_tokens(), num_kv_heads, head_dim}; }
  [[nodiscard]] Shape v_shape() const { return {num_tokens(), num_kv_heads, value_dim()}; }
  [[nodiscard]] std::string name() const {
    return "N " + std::to_string(num_heads) + " M " + std::to_string(num_kv_heads) + " H " +
           std::to_string(head_dim) + " U " + std::to_string(value_dim()) + " T " +
           std::to_string(num_tokens()) + " window " + std::to_string(window) +
           (in_chunks ? " in chunks" : "") + (has_sinks ? " sinks" : "") +
           (score_cap > 0 ? " cap " + std::to_string(score_cap) : "");
  }
};

struct AttentionData {
  AttentionData(const AttentionCase& c, DType type)
      : q(random_buffer(type, c.q_shape(), {.seed = 1, .scale = c.spread})),
        k(random_buffer(type, c.k_shape(), {.seed = 2, .scale = c.spread})),
        v(random_buffer(type, c.v_shape(), {.seed = 3, .scale = c.v_scale})),
        d_out(random_buffer(type, c.out_shape(), {.seed = 4})),
        sinks(random_buffer(DType::kF32, {c.has_sinks ? c.num_heads : 0},
                            {.seed = 5, .scale = 2 * c.spread})),
        latent(c.latent_dim > 0) {
    for (int64_t i = 0; latent && i < v.size(); ++i) {
      v.set(i, k.get(i / c.latent_dim * c.head_dim + i % c.latent_dim));
    }
  }
  Buffer q;
  Buffer k;
  Buffer v;
  Buffer d_out;
  Buffer sinks;
  [[nodiscard]] TensorView sinks_or_none() const {
    return sinks.size() == 0 ? TensorView() : sinks.view();
  }
  bool latent;  // v is a copy of columns of k, for the oracle alone
};

// Keys and values of one sequence in pages of their own; slots past the last key hold NaN.
class Pages {
 public:
  // Rows [begin, begin + count) of k and v.
  Pages(const AttentionData& data, int64_t begin, int64_t count, int64_t page_size)
      : stride_(data.k.view().shape[1] * data.k.view().shape[2]) {
    for (int64_t position = 0; position < count; position += page_size) {
      KvRange range{.begin = position, .end = position + page_size};
      const int64_t filled = std::min(page_size, count - position);
      range.keys = copy_rows(data.k, begin + position, filled, page_size);
      range.values =
          data.latent ? range.keys : copy_rows(data.v, begin + position, filled, page_size);
      ranges_.push_back(range);
    }
  }
  [[nodiscard]] KvView view() const { return {ranges_, stride_}; }

 private:
  void* copy_rows(const Buffer& source, int64_t begin, int64_t count, int64_t page_size) {
    const DType dtype = source.view().dtype;
    const int64_t bytes = stride_ * dtype_bytes(dtype);
    memory_.push_back(std::make_unique<Buffer>(dtype, Shape{page_size, stride_}));
    void* page = memory_.back()->view().data;
    std::memcpy(page, static_cast<const char*>(source.view().data) + begin * bytes,
                static_cast<size_t>(count * bytes));
    return page;
  }

  int64_t stride_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<KvRange> ranges_;
};

// Whole sequences whose K and V are the batch's own: as in training.
class TrainingSegments {
 public:
  TrainingSegments(const AttentionCase& c, const AttentionData& data) : ranges_(c.lengths.size()) {
    int64_t begin = 0;
    const int64_t stride = c.num_kv_heads * c.head_dim;
    const int64_t bytes = stride * dtype_bytes(data.k.view().dtype);
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      KvRange& range = ranges_[s];
      range.keys = static_cast<char*>(data.k.view().data) + begin * bytes;
      range.values =
          data.latent ? range.keys : static_cast<char*>(data.v.view().data) + begin * bytes;
      range.end = c.lengths[s];
      segments_.push_back({.begin = begin,
                           .end = begin + c.lengths[s],
                           .first_position = 0,
                           .kv = {{&range, 1}, stride}});
      begin += c.lengths[s];
    }
  }
  [[nodiscard]] std::span<const AttentionSegment> segments() const { return segments_; }

 private:
  std::vector<KvRange> ranges_;
  std::vector<AttentionSegment> segments_;
};

inline AttentionArgs args_of(const AttentionCase& c, const AttentionData& data,
                             std::span<const AttentionSegment> segments) {
  return {.q = data.q.view(),
          .segments = segments,
          .num_kv_heads = c.num_kv_heads,
          .scale = c.scale(),
          .value_dim = c.latent_dim,
          .window = c.window,
          .in_chunks = c.in_chunks,
          .sinks = data.sinks_or_none(),
          .score_cap = static_cast<float>(c.score_cap)};
}

struct Forwarded {
  Buffer out;
  Buffer lse;
};

inline Forwarded run_forward(Backend& backend, const AttentionCase& c, const AttentionData& data,
                             std::span<const AttentionSegment> segments) {
  Forwarded result{Buffer(data.q.view().dtype, c.out_shape()),
                   Buffer(DType::kF32, {c.num_tokens(), c.num_heads})};
  attention(backend, args_of(c, data, segments), result.out, result.lse);
  return result;
}

struct Gradients {
  Buffer d_q;
  Buffer d_k;
  Buffer d_v;
  Buffer d_sinks;
};

inline Gradients run_backward(Backend& backend, const AttentionCase& c, const AttentionData& data,
                              std::span<const AttentionSegment> segments, const Forwarded& forward,
                              DType result) {
  Gradients grads{Buffer(result, c.q_shape()), Buffer(result, c.k_shape()),
                  Buffer(result, c.v_shape()),
                  filled_buffer(DType::kF32, data.sinks.view().shape, 0)};
  attention_backward(backend, args_of(c, data, segments), forward.out, forward.lse, data.d_out,
                     grads.d_q, grads.d_k, grads.d_v,
                     c.has_sinks ? grads.d_sinks.view() : TensorView());
  return grads;
}

// What the oracle says and how far a result may be from it: each an array like the tensor it is of.
struct Expected {
  std::vector<double> want;
  std::vector<double> bound;
};
struct ExpectedAttention {
  Expected out, lse, d_q, d_k, d_v, d_sinks;
};

// Bounds to first order, u = 2^-24 (Higham's gamma_n = n u), w the roundoff of the element type's
// products (0 for f32), o that of the result's type. With a = scale sum_h |q k|:
//   score:  e_s = (H + 4) u max_j a_j          one chain of H steps, the scale, log2(e); a sink is
//                                              a score of magnitude |sink|; with a cap another
//                                              12 u |s|: tanh is good to 6 u, its argument to 2 u,
//                                              the cap and log2(e) to 4 u
//   p:      e_p = 2 e_s + (max |s| + 48) u     numerator and denominator; exp2 is good to 3 u, its
//           argument to u |s|; sums of at most 64 terms in trees, rescaled once a block
//   out:    sum_j p |v| (e_p + w + (T + blocks) u) + o |out|
//   lse:    e_s + (|lse| + max |s| + 48) u
//   d_p:    e_d = (H + 1) u sum_h |d_out v|; delta: e_D = sum_h |d_out| e_out + H u sum_h |d_out
//   out| d_s:    p (e_d + e_D + |d_p - delta| (e_p' + w + 2 u)), e_p' = e_p + e_lse d_q:    scale
//   sum_j (e_ds |k| + (T + 2) u |d_s k|) + o |d_q|; d_k, d_v alike over queries. With a cap d_s is
//   times 1 - t^2, t = s / cap, whose error is 2 |t| e_s / cap + 2 u.
class ExpectedSequence {
 public:
  ExpectedSequence(const AttentionCase& c, DType dtype, int64_t length, int64_t begin)
      : c_(c),
        shape_{length,        c.num_heads, c.num_kv_heads, c.head_dim,
               c.value_dim(), c.window,    c.score_cap,    c.in_chunks},
        w_(dtype == DType::kF32 ? 0.0 : unit_roundoff(DType::kBF16)),
        o_forward_(unit_roundoff(dtype)),
        terms_(static_cast<double>((c.window == 0 ? length : std::min(length, c.window)) *
                                   c.num_heads / c.num_kv_heads) +
               2),
        q_at_(static_cast<size_t>(begin * c.num_heads * c.head_dim)),
        k_at_(static_cast<size_t>(begin * c.num_kv_heads * c.head_dim)),
        o_at_(static_cast<size_t>(begin * c.num_heads * c.value_dim())),
        v_at_(static_cast<size_t>(begin * c.num_kv_heads * c.value_dim())),
        l_at_(static_cast<size_t>(begin * c.num_heads)) {}

  // Of all sequences' values, q, k, v and d_out; sinks, or null.
  void fill(const double* q, const double* k, const double* v, const double* sinks,
            const double* d_out, ExpectedAttention& e) {
    qs_ = q + q_at_;
    ks_ = k + k_at_;
    vs_ = v + v_at_;
    ds_ = d_out + o_at_;
    sinks_ = sinks;
    const double scale = c_.scale();
    std::vector<double> d_sinks(e.d_sinks.want.size());
    ref::attention(shape_, scale, qs_, ks_, vs_, sinks, e.out.want.data() + o_at_,
                   e.lse.want.data() + l_at_);
    ref::attention_backward(shape_, scale, qs_, ks_, vs_, sinks, ds_, e.d_q.want.data() + q_at_,
                            e.d_k.want.data() + k_at_, e.d_v.want.data() + v_at_, d_sinks.data());
    for (size_t n = 0; n < d_sinks.size(); ++n) e.d_sinks.want[n] += d_sinks[n];
    for (int64_t t = 0; t < shape_.num_tokens; ++t) {
      for (int64_t n = 0; n < c_.num_heads; ++n) bound_row(t, n, e);
    }
  }

 private:
  static constexpr double kU = 0x1.0p-24;

  // What rounding makes of a row's probabilities, and of its out times d_out.
  struct Rounding {
    double score = 0, p = 0, lse = 0, delta = 0;
  };

  void bound_row(int64_t t, int64_t n, ExpectedAttention& e) {
    const auto row = static_cast<size_t>(shape_.query(t, n));
    const double lse =
        ref::compute_probabilities_and_lse(shape_, c_.scale(), qs_, ks_, sinks_, t, n, p_);
    const double sink = sinks_ == nullptr ? 0 : sinks_[n];
    double largest = std::abs(sink);
    double largest_score = std::abs(sink);
    for (int64_t j = shape_.first_key(t); j <= t; ++j) {
      double sum = 0;
      for (int64_t h = 0; h < c_.head_dim; ++h) {
        sum += std::abs(qs_[row + static_cast<size_t>(h)] * ks_[shape_.key(j, n) + h]) * c_.scale();
      }
      largest = std::max(largest, sum);
      largest_score =
          std::max(largest_score, std::abs(lse + std::log(p_[static_cast<size_t>(j)] + 1e-300)));
    }
    const double e_s = (static_cast<double>(c_.head_dim) + 4) * kU * largest +
                       (c_.score_cap == 0 ? 0.0 : 12 * kU * largest_score);
    Rounding rounding = {.score = e_s,
                         .p = 2 * e_s + (largest_score + 48) * kU,
                         .lse = e_s + (std::abs(lse) + largest_score + 48) * kU};
    e.lse.bound[l_at_ + row / static_cast<size_t>(c_.head_dim)] = rounding.lse;
    const double delta = bound_out(t, n, rounding, e);
    if (sinks_ != nullptr) {
      // A chain over all queries of all sequences, of terms that are summed in f32.
      const double term = std::exp(sink - lse);
      const double chain = static_cast<double>(c_.num_tokens()) + 4;
      e.d_sinks.bound[static_cast<size_t>(n)] +=
          term * (rounding.delta + std::abs(delta) * (rounding.p + rounding.lse + chain * kU));
    }
    for (int64_t j = shape_.first_key(t); j <= t; ++j) {
      bound_key(t, n, j, find_slope(lse, p_[static_cast<size_t>(j)], rounding), delta, rounding, e);
    }
  }

  // What d_s is times, and how far it may be off.
  struct Slope {
    double value = 1, error = 0;
  };
  [[nodiscard]] Slope find_slope(double lse, double p, const Rounding& rounding) const {
    if (c_.score_cap == 0) return {};
    const double t = (lse + std::log(p)) / c_.score_cap;
    return {1 - t * t, 2 * std::abs(t) * rounding.score / c_.score_cap + 2 * kU};
  }

  // Returns its out times d_out.
  double bound_out(int64_t t, int64_t n, Rounding& rounding, ExpectedAttention& e) {
    const auto value_dim = static_cast<double>(shape_.value_dim);
    double delta = 0;
    for (int64_t h = 0; h < shape_.value_dim; ++h) {
      const size_t at = static_cast<size_t>(shape_.out(t, n)) + static_cast<size_t>(h);
      double magnitude = 0;
      for (int64_t j = shape_.first_key(t); j <= t; ++j) {
        magnitude += p_[static_cast<size_t>(j)] * std::abs(vs_[shape_.value(j, n) + h]);
      }
      const double want = e.out.want[o_at_ + at];
      double& bound = e.out.bound[o_at_ + at];
      bound = magnitude * (rounding.p + w_ + 1.1 * terms_ * kU) + o_forward_ * std::abs(want);
      rounding.delta += std::abs(ds_[at]) * (bound + value_dim * kU * std::abs(want));
      delta += ds_[at] * want;
    }
    return delta;
  }

  void bound_key(int64_t t, int64_t n, int64_t j, Slope slope, double delta,
                 const Rounding& rounding, ExpectedAttention& e) {
    const auto row = static_cast<size_t>(shape_.query(t, n));
    const auto out_row = static_cast<size_t>(shape_.out(t, n));
    const auto key = static_cast<size_t>(shape_.key(j, n));
    const auto value = static_cast<size_t>(shape_.value(j, n));
    const double scale = c_.scale();
    double d_p = 0;
    double d_p_magnitude = 0;
    for (int64_t h = 0; h < shape_.value_dim; ++h) {
      const double product =
          ds_[out_row + static_cast<size_t>(h)] * vs_[value + static_cast<size_t>(h)];
      d_p += product;
      d_p_magnitude += std::abs(product);
    }
    const double prob = p_[static_cast<size_t>(j)];
    const double relative = rounding.p + rounding.lse + w_ + terms_ * kU;
    const double d_s = prob * (d_p - delta);
    const double e_before_slope =
        prob * ((static_cast<double>(shape_.value_dim) + 1) * kU * d_p_magnitude + rounding.delta) +
        std::abs(d_s) * relative;
    const double e_d_s = slope.value * e_before_slope + std::abs(d_s) * slope.error;
    for (int64_t h = 0; h < c_.head_dim; ++h) {
      const size_t qi = row + static_cast<size_t>(h);
      const size_t ki = key + static_cast<size_t>(h);
      e.d_q.bound[q_at_ + qi] += scale * e_d_s * std::abs(ks_[ki]);
      e.d_k.bound[k_at_ + ki] += scale * e_d_s * std::abs(qs_[qi]);
    }
    for (int64_t h = 0; h < shape_.value_dim; ++h) {
      e.d_v.bound[v_at_ + value + static_cast<size_t>(h)] +=
          prob * relative * std::abs(ds_[out_row + static_cast<size_t>(h)]);
    }
  }

  const AttentionCase& c_;
  const ref::AttentionShape shape_;
  const double w_, o_forward_, terms_;
  const size_t q_at_, k_at_, o_at_, v_at_, l_at_;
  const double *qs_ = nullptr, *ks_ = nullptr, *vs_ = nullptr, *ds_ = nullptr, *sinks_ = nullptr;
  std::vector<double> p_;
};

inline ExpectedAttention expected_attention(const AttentionCase& c, const AttentionData& data,
                                            DType result) {
  const auto q = data.q.values();
  const auto k = data.k.values();
  const auto v = data.v.values();
  const auto d_out = data.d_out.values();
  const auto sized = [](size_t n) {
    return Expected{std::vector<double>(n), std::vector<double>(n)};
  };
  const auto sinks = data.sinks.values();
  ExpectedAttention e{sized(d_out.size()), sized(q.size() / static_cast<size_t>(c.head_dim)),
                      sized(q.size()),     sized(k.size()),
                      sized(v.size()),     sized(sinks.size())};
  int64_t begin = 0;
  for (const int64_t length : c.lengths) {
    ExpectedSequence(c, data.q.view().dtype, length, begin)
        .fill(q.data(), k.data(), v.data(), sinks.empty() ? nullptr : sinks.data(), d_out.data(),
              e);
    begin += length;
  }
  const double o = unit_roundoff(result);
  for (Expected* x : {&e.d_q, &e.d_k, &e.d_v}) {
    for (size_t i = 0; i < x->want.size(); ++i) x->bound[i] += o * std::abs(x->want[i]);
  }
  return e;
}

}  // namespace strata::ops::testing
