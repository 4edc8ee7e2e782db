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
           std::to_string(num_tokens()) + " window " + std::to_string(window);
  }
};

struct AttentionData {
  AttentionData(const AttentionCase& c, DType type)
      : q(random_buffer(type, c.q_shape(), {.seed = 1, .scale = c.spread})),
        k(random_buffer(type, c.k_shape(), {.seed = 2, .scale = c.spread})),
        v(random_buffer(type, c.v_shape(), {.seed = 3, .scale = c.v_scale})),
        d_out(random_buffer(type, c.out_shape(), {.seed = 4})),
        latent(c.latent_dim > 0) {
    for (int64_t i = 0; latent && i < v.size(); ++i) {
      v.set(i, k.get(i / c.latent_dim * c.head_dim + i % c.latent_dim));
    }
  }
  Buffer q;
  Buffer k;
  Buffer v;
  Buffer d_out;
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

struct Forwarded {
  Buffer out;
  Buffer lse;
};

inline Forwarded run_forward(Backend& backend, const AttentionCase& c, const AttentionData& data,
                             std::span<const AttentionSegment> segments) {
  Forwarded result{Buffer(data.q.view().dtype, c.out_shape()),
                   Buffer(DType::kF32, {c.num_tokens(), c.num_heads})};
  attention(backend,
            {.q = data.q.view(),
             .segments = segments,
             .num_kv_heads = c.num_kv_heads,
             .scale = c.scale(),
             .value_dim = c.latent_dim,
             .window = c.window},
            result.out, result.lse);
  return result;
}

struct Gradients {
  Buffer d_q;
  Buffer d_k;
  Buffer d_v;
};

inline Gradients run_backward(Backend& backend, const AttentionCase& c, const AttentionData& data,
                              std::span<const AttentionSegment> segments, const Forwarded& forward,
                              DType result) {
  Gradients grads{Buffer(result, c.q_shape()), Buffer(result, c.k_shape()),
                  Buffer(result, c.v_shape())};
  attention_backward(backend,
                     {.q = data.q.view(),
                      .segments = segments,
                      .num_kv_heads = c.num_kv_heads,
                      .scale = c.scale(),
                      .value_dim = c.latent_dim,
                      .window = c.window},
                     forward.out, forward.lse, data.d_out, grads.d_q, grads.d_k, grads.d_v);
  return grads;
}

// What the oracle says and how far a result may be from it: each an array like the tensor it is of.
struct Expected {
  std::vector<double> want;
  std::vector<double> bound;
};
struct ExpectedAttention {
  Expected out, lse, d_q, d_k, d_v;
};

// Bounds to first order, u = 2^-24 (Higham's gamma_n = n u), w the roundoff of the element type's
// products (0 for f32), o that of the result's type. With a = scale sum_h |q k|:
//   score:  e_s = (H + 4) u max_j a_j          one chain of H steps, the scale, log2(e)
//   p:      e_p = 2 e_s + (max |s| + 48) u     numerator and denominator; exp2 is good to 3 u, its
//           argument to u |s|; sums of at most 64 terms in trees, rescaled once a block
//   out:    sum_j p |v| (e_p + w + (T + blocks) u) + o |out|
//   lse:    e_s + (|lse| + max |s| + 48) u
//   d_p:    e_d = (H + 1) u sum_h |d_out v|; delta: e_D = sum_h |d_out| e_out + H u sum_h |d_out
//   out| d_s:    p (e_d + e_D + |d_p - delta| (e_p' + w + 2 u)), e_p' = e_p + e_lse d_q:    scale
//   sum_j (e_ds |k| + (T + 2) u |d_s k|) + o |d_q|; d_k, d_v alike over queries.
inline ExpectedAttention expected_attention(const AttentionCase& c, const AttentionData& data,
                                            DType result) {
  constexpr double kU = 0x1.0p-24;
  const double w = data.q.view().dtype == DType::kF32 ? 0.0 : unit_roundoff(DType::kBF16);
  const double o_forward = unit_roundoff(data.q.view().dtype);
  const double o = unit_roundoff(result);
  const double scale = c.scale();
  const int64_t dim = c.head_dim;
  const int64_t value_dim = c.value_dim();
  const auto q = data.q.values();
  const auto k = data.k.values();
  const auto v = data.v.values();
  const auto d_out = data.d_out.values();
  const auto sized = [](size_t n) {
    return Expected{std::vector<double>(n), std::vector<double>(n)};
  };
  ExpectedAttention e{sized(d_out.size()), sized(q.size() / static_cast<size_t>(dim)),
                      sized(q.size()), sized(k.size()), sized(v.size())};
  int64_t begin = 0;
  for (const int64_t length : c.lengths) {
    const ref::AttentionShape shape{length, c.num_heads, c.num_kv_heads, dim, value_dim, c.window};
    const auto q_at = static_cast<size_t>(begin * c.num_heads * dim);
    const auto k_at = static_cast<size_t>(begin * c.num_kv_heads * dim);
    const auto o_at = static_cast<size_t>(begin * c.num_heads * value_dim);
    const auto v_at = static_cast<size_t>(begin * c.num_kv_heads * value_dim);
    const auto l_at = static_cast<size_t>(begin * c.num_heads);
    const double* qs = q.data() + q_at;
    const double* ks = k.data() + k_at;
    const double* vs = v.data() + v_at;
    const double* ds = d_out.data() + o_at;
    ref::attention(shape, scale, qs, ks, vs, e.out.want.data() + o_at, e.lse.want.data() + l_at);
    ref::attention_backward(shape, scale, qs, ks, vs, ds, e.d_q.want.data() + q_at,
                            e.d_k.want.data() + k_at, e.d_v.want.data() + v_at);
    const int64_t keys = c.window == 0 ? length : std::min(length, c.window);
    const double terms = static_cast<double>(keys * c.num_heads / c.num_kv_heads) + 2;
    std::vector<double> p;
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t n = 0; n < c.num_heads; ++n) {
        const auto row = static_cast<size_t>(shape.query(t, n));
        const auto out_row = static_cast<size_t>(shape.out(t, n));
        const double lse = ref::attention_probabilities(shape, scale, qs, ks, t, n, p);
        double largest = 0;
        double largest_score = 0;
        for (int64_t j = shape.first_key(t); j <= t; ++j) {
          double sum = 0;
          for (int64_t h = 0; h < dim; ++h) {
            sum += std::abs(qs[row + static_cast<size_t>(h)] * ks[shape.key(j, n) + h]) * scale;
          }
          largest = std::max(largest, sum);
          largest_score =
              std::max(largest_score, std::abs(lse + std::log(p[static_cast<size_t>(j)] + 1e-300)));
        }
        const double e_s = (static_cast<double>(dim) + 4) * kU * largest;
        const double e_p = 2 * e_s + (largest_score + 48) * kU;
        const double e_lse = e_s + (std::abs(lse) + largest_score + 48) * kU;
        e.lse.bound[l_at + row / static_cast<size_t>(dim)] = e_lse;
        double e_delta = 0;
        double delta = 0;
        for (int64_t h = 0; h < value_dim; ++h) {
          const size_t at = out_row + static_cast<size_t>(h);
          double magnitude = 0;
          for (int64_t j = shape.first_key(t); j <= t; ++j) {
            magnitude += p[static_cast<size_t>(j)] * std::abs(vs[shape.value(j, n) + h]);
          }
          const double want = e.out.want[o_at + at];
          double& bound = e.out.bound[o_at + at];
          bound = magnitude * (e_p + w + 1.1 * terms * kU) + o_forward * std::abs(want);
          e_delta +=
              std::abs(ds[at]) * (bound + static_cast<double>(value_dim) * kU * std::abs(want));
          delta += ds[at] * want;
        }
        for (int64_t j = shape.first_key(t); j <= t; ++j) {
          const auto key = static_cast<size_t>(shape.key(j, n));
          const auto value = static_cast<size_t>(shape.value(j, n));
          double d_p = 0;
          double d_p_magnitude = 0;
          for (int64_t h = 0; h < value_dim; ++h) {
            const double product =
                ds[out_row + static_cast<size_t>(h)] * vs[value + static_cast<size_t>(h)];
            d_p += product;
            d_p_magnitude += std::abs(product);
          }
          const double prob = p[static_cast<size_t>(j)];
          const double rounding = e_p + e_lse + w + terms * kU;
          const double d_s = prob * (d_p - delta);
          const double e_d_s =
              prob * ((static_cast<double>(value_dim) + 1) * kU * d_p_magnitude + e_delta) +
              std::abs(d_s) * rounding;
          for (int64_t h = 0; h < dim; ++h) {
            const size_t qi = row + static_cast<size_t>(h);
            const size_t ki = key + static_cast<size_t>(h);
            e.d_q.bound[q_at + qi] += scale * e_d_s * std::abs(ks[ki]);
            e.d_k.bound[k_at + ki] += scale * e_d_s * std::abs(qs[qi]);
          }
          for (int64_t h = 0; h < value_dim; ++h) {
            e.d_v.bound[v_at + value + static_cast<size_t>(h)] +=
                prob * rounding * std::abs(ds[out_row + static_cast<size_t>(h)]);
          }
        }
      }
    }
    begin += length;
  }
  for (Expected* x : {&e.d_q, &e.d_k, &e.d_v}) {
    for (size_t i = 0; i < x->want.size(); ++i) x->bound[i] += o * std::abs(x->want[i]);
  }
  return e;
}

}  // namespace strata::ops::testing
