// SPDX-License-Identifier: Apache-2.0
// Hyper-connections as templates over the path; see cpu/simd.h for what may be called here.
#include "ops/cpu/hyper_connection.h"
#include "ops/cpu/inv_rms_impl.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

// Rows of fn whose sums one pass over a token's streams makes, and tokens that share a read of fn.
constexpr int64_t kMixRows = 4;
constexpr int64_t kMixTokens = 4;
constexpr int64_t kMixBackwardTokens = 8;

// mix of up to kMixTokens tokens and kMixRows rows, without the norm.
template <typename V, int kTokens, int kRows, typename X>
[[gnu::always_inline]] inline void hyper_mix_tile(const HyperKernel& k, const X* x, const float* fn,
                                                  float* mix) {
  typename V::F sum[kTokens][kRows];
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < kRows; ++r) sum[t][r] = V::set1(0.0f);
  }
  for_chunks<V>(k.row, [&](int64_t i, auto part) {
    typename V::F w[kRows];
    for (int r = 0; r < kRows; ++r) w[r] = V::load(fn + r * k.row + i, part);
    for (int t = 0; t < kTokens; ++t) {
      const auto value = V::load(x + t * k.row + i, part);
      for (int r = 0; r < kRows; ++r) sum[t][r] = V::fma(value, w[r], sum[t][r]);
    }
  });
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < kRows; ++r) mix[t * k.numbers + r] = V::sum(sum[t][r]);
  }
}

template <typename V, int kTokens, typename X>
[[gnu::always_inline]] inline void hyper_mix_rows(const HyperKernel& k, const X* x, float* mix) {
  int64_t r = 0;
  for (; r + kMixRows <= k.numbers; r += kMixRows) {
    hyper_mix_tile<V, kTokens, kMixRows>(k, x, k.fn + r * k.row, mix + r);
  }
  for (; r < k.numbers; ++r) hyper_mix_tile<V, kTokens, 1>(k, x, k.fn + r * k.row, mix + r);
}

// The norm of a token's streams, applied to its numbers.
template <typename V>
[[gnu::always_inline]] inline void scale_mix(const HyperKernel& k, float inv_rms, float* mix) {
  for (int64_t r = 0; r < k.numbers; ++r) mix[r] *= inv_rms;
}

template <typename V>
void hyper_mix_tokens(const HyperKernel& k, float norm_eps, float* mix, float* inv_rms,
                      int64_t begin, int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    const X* x = static_cast<const X*>(k.x);
    int64_t t = begin;
    for (; t + kMixTokens <= end; t += kMixTokens) {
      hyper_mix_rows<V, kMixTokens>(k, x + t * k.row, mix + t * k.numbers);
    }
    for (; t < end; ++t) hyper_mix_rows<V, 1>(k, x + t * k.row, mix + t * k.numbers);
    for (t = begin; t < end; ++t) {
      inv_rms[t] = inv_rms_of<V>(x + t * k.row, k.row, norm_eps);
      scale_mix<V>(k, inv_rms[t], mix + t * k.numbers);
    }
  });
}

// The factor of x in d_x: inv^2 / (S D) sum_r d_mix_r mix_r.
template <typename V>
[[gnu::always_inline]] inline float norm_factor(const HyperKernel& k, const HyperMixGradients& g,
                                                int64_t token) {
  const double inv = g.inv_rms[token];
  double shift = 0.0;
  for (int64_t r = token * k.numbers; r < (token + 1) * k.numbers; ++r)
    shift += static_cast<double>(g.d_mix[r]) * static_cast<double>(g.mix[r]);
  return static_cast<float>(shift * inv * inv / static_cast<double>(k.row));
}

// Goes back through kTokens tokens from `first` on, which share a read of fn.
template <typename V, int kTokens, typename X>
[[gnu::always_inline]] inline void hyper_mix_backward_tile(const HyperKernel& k,
                                                           const HyperMixGradients& g, float* d_x,
                                                           int64_t first) {
  const float* d_mix = g.d_mix + first * k.numbers;
  const X* x = static_cast<const X*>(k.x) + first * k.row;
  float* d = d_x + first * k.row;
  float back[kTokens];
  for (int t = 0; t < kTokens; ++t) back[t] = norm_factor<V>(k, g, first + t);
  for_chunks<V>(k.row, [&](int64_t i, auto part) {
    typename V::F sum[kTokens];
    for (int t = 0; t < kTokens; ++t) sum[t] = V::set1(0.0f);
    for (int64_t r = 0; r < k.numbers; ++r) {
      const auto w = V::load(k.fn + r * k.row + i, part);
      for (int t = 0; t < kTokens; ++t)
        sum[t] = V::fma(V::set1(d_mix[t * k.numbers + r]), w, sum[t]);
    }
    for (int t = 0; t < kTokens; ++t) {
      const int64_t at = t * k.row + i;
      const auto direct = V::fma(sum[t], V::set1(g.inv_rms[first + t]), V::load(d + at, part));
      V::store(d + at, V::fnma(V::load(x + at, part), V::set1(back[t]), direct), part);
    }
  });
}

// mix_r = inv sum_c fn_rc x_c: d_x_c += inv sum_r d_mix_r fn_rc - x_c inv^2 / (S D) sum_r d_mix_r
// mix_r
template <typename V>
void hyper_mix_backward_tokens(const HyperKernel& k, const HyperMixGradients& g, float* d_x,
                               int64_t begin, int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    int64_t t = begin;
    for (; t + kMixBackwardTokens <= end; t += kMixBackwardTokens)
      hyper_mix_backward_tile<V, kMixBackwardTokens, X>(k, g, d_x, t);
    for (; t < end; ++t) hyper_mix_backward_tile<V, 1, X>(k, g, d_x, t);
  });
}

// mix_r = inv sum_c fn_rc x_c: d_fn_rc += sum_t d_mix_tr inv_t x_tc, tokens ascending.
template <typename V>
void add_hyper_d_fn(const HyperKernel& k, const HyperMixGradients& g, int64_t num_tokens,
                    float* d_fn, int64_t begin, int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    for (int64_t r = 0; r < k.numbers; ++r) {
      float* d = d_fn + r * k.row + begin;
      for_chunks<V>(end - begin, [&](int64_t i, auto part) {
        auto sum = V::load(d + i, part);
        for (int64_t t = 0; t < num_tokens; ++t) {
          const float factor = g.d_mix[t * k.numbers + r] * g.inv_rms[t];
          const X* x = static_cast<const X*>(k.x) + t * k.row + begin;
          sum = V::fma(V::set1(factor), V::load(x + i, part), sum);
        }
        V::store(d + i, sum, part);
      });
    }
  });
}

template <typename V>
void hyper_collapse_tokens(const HyperKernel& k, float* y, int64_t begin, int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    for (int64_t t = begin; t < end; ++t) {
      const X* x = static_cast<const X*>(k.x) + t * k.row;
      const float* pre = k.weights + t * k.numbers;
      for_chunks<V>(k.width, [&](int64_t i, auto part) {
        auto sum = V::set1(0.0f);
        for (int64_t s = 0; s < k.num_streams; ++s) {
          sum = V::fma(V::set1(pre[s]), V::load(x + s * k.width + i, part), sum);
        }
        V::store(y + t * k.width + i, sum, part);
      });
    }
  });
}

// y = sum_i pre_i x_i: d_pre_i = d_y . x_i, d_x_i += pre_i d_y
template <typename V>
void hyper_collapse_backward_tokens(const HyperKernel& k, const float* d_y, float* d_x,
                                    float* d_weights, int64_t begin, int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    for (int64_t t = begin; t < end; ++t) {
      const float* d = d_y + t * k.width;
      for (int64_t s = 0; s < k.num_streams; ++s) {
        const X* x = static_cast<const X*>(k.x) + t * k.row + s * k.width;
        float* to = d_x + t * k.row + s * k.width;
        const auto pre = V::set1(k.weights[t * k.numbers + s]);
        auto sum = V::set1(0.0f);
        for_chunks<V>(k.width, [&](int64_t i, auto part) {
          const auto value = V::load(d + i, part);
          sum = V::fma(value, V::load(x + i, part), sum);
          V::store(to + i, V::fma(pre, value, V::load(to + i, part)), part);
        });
        d_weights[t * k.numbers + s] = V::sum(sum);
      }
    }
  });
}

// Calls body.operator()<kStreams>(): 4, what models have, so that loops over streams unroll; 0
// otherwise.
template <typename V, typename Body>
[[gnu::always_inline]] inline void with_streams(int64_t num_streams, Body&& body) {
  if (num_streams == 4) {
    body.template operator()<4>();
  } else {
    body.template operator()<0>();
  }
}

// y_j = post_j out + sum_i comb_ij x_i of one token.
template <typename V, int kStreams, typename X, typename O, typename Y>
[[gnu::always_inline]] inline void hyper_expand_token(const HyperKernel& k, const X* x,
                                                      const O* out, const float* post, Y* y) {
  const int64_t n = kStreams == 0 ? k.num_streams : kStreams;
  const float* comb = post + n;
  for_chunks<V>(k.width, [&](int64_t i, auto part) {
    typename V::F from[kMaxStreams];
    for (int64_t s = 0; s < n; ++s) from[s] = V::load(x + s * k.width + i, part);
    const auto branch = V::load(out + i, part);
    for (int64_t j = 0; j < n; ++j) {
      auto sum = V::set1(post[j]) * branch;
      for (int64_t s = 0; s < n; ++s) {
        sum = V::fma(V::set1(comb[s * n + j]), from[s], sum);
      }
      V::store(y + j * k.width + i, sum, part);
    }
  });
}

template <typename V>
void hyper_expand_tokens(const HyperKernel& k, DType out_type, const void* out, DType y_type,
                         void* y, int64_t begin, int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    with_type<V>(out_type, [&]<typename O>() {
      with_type<V>(y_type, [&]<typename Y>() {
        with_streams<V>(k.num_streams, [&]<int kStreams>() {
          for (int64_t t = begin; t < end; ++t) {
            hyper_expand_token<V, kStreams>(
                k, static_cast<const X*>(k.x) + t * k.row, static_cast<const O*>(out) + t * k.width,
                k.weights + t * k.numbers + k.num_streams, static_cast<Y*>(y) + t * k.row);
          }
        });
      });
    });
  });
}

// y_j = post_j out + sum_i comb_ij x_i: d_out = sum_j post_j d_j, d_post_j = d_j . out, d_comb_ij =
// d_j . x_i, d_x_i = sum_j comb_ij d_j, in place of d; of one token.
template <typename V, int kStreams, typename X, typename O>
[[gnu::always_inline]] inline void hyper_expand_backward_token(const HyperKernel& k, const X* x,
                                                               const O* out, const float* post,
                                                               float* d, float* d_out,
                                                               float* d_weights) {
  const int64_t n = kStreams == 0 ? k.num_streams : kStreams;
  const float* comb = post + n;
  typename V::F d_post[kMaxStreams];
  typename V::F d_comb[kMaxStreams * kMaxStreams];
  for (int64_t j = 0; j < n; ++j) d_post[j] = V::set1(0.0f);
  for (int64_t j = 0; j < n * n; ++j) d_comb[j] = V::set1(0.0f);
  for_chunks<V>(k.width, [&](int64_t i, auto part) {
    typename V::F from[kMaxStreams];
    const auto branch = V::load(out + i, part);
    auto sum = V::set1(0.0f);
    for (int64_t j = 0; j < n; ++j) {
      from[j] = V::load(d + j * k.width + i, part);
      sum = V::fma(V::set1(post[j]), from[j], sum);
      d_post[j] = V::fma(from[j], branch, d_post[j]);
    }
    V::store(d_out + i, sum, part);
    for (int64_t s = 0; s < n; ++s) {
      const auto value = V::load(x + s * k.width + i, part);
      auto d_x = V::set1(0.0f);
      for (int64_t j = 0; j < n; ++j) {
        d_comb[s * n + j] = V::fma(from[j], value, d_comb[s * n + j]);
        d_x = V::fma(V::set1(comb[s * n + j]), from[j], d_x);
      }
      V::store(d + s * k.width + i, d_x, part);
    }
  });
  for (int64_t j = 0; j < n; ++j) d_weights[j] = V::sum(d_post[j]);
  for (int64_t j = 0; j < n * n; ++j) d_weights[n + j] = V::sum(d_comb[j]);
}

template <typename V>
void hyper_expand_backward_tokens(const HyperKernel& k, DType out_type, const void* out, float* d,
                                  float* d_out, float* d_weights, int64_t begin, int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    with_type<V>(out_type, [&]<typename O>() {
      with_streams<V>(k.num_streams, [&]<int kStreams>() {
        for (int64_t t = begin; t < end; ++t) {
          const int64_t first = t * k.numbers + k.num_streams;  // of the weights of out
          hyper_expand_backward_token<V, kStreams>(
              k, static_cast<const X*>(k.x) + t * k.row, static_cast<const O*>(out) + t * k.width,
              k.weights + first, d + t * k.row, d_out + t * k.width, d_weights + first);
        }
      });
    });
  });
}

template void hyper_mix_tokens<ThisPath>(const HyperKernel&, float, float*, float*, int64_t,
                                         int64_t);
template void hyper_mix_backward_tokens<ThisPath>(const HyperKernel&, const HyperMixGradients&,
                                                  float*, int64_t, int64_t);
template void add_hyper_d_fn<ThisPath>(const HyperKernel&, const HyperMixGradients&, int64_t,
                                       float*, int64_t, int64_t);
template void hyper_collapse_tokens<ThisPath>(const HyperKernel&, float*, int64_t, int64_t);
template void hyper_collapse_backward_tokens<ThisPath>(const HyperKernel&, const float*, float*,
                                                       float*, int64_t, int64_t);
template void hyper_expand_tokens<ThisPath>(const HyperKernel&, DType, const void*, DType, void*,
                                            int64_t, int64_t);
template void hyper_expand_backward_tokens<ThisPath>(const HyperKernel&, DType, const void*, float*,
                                                     float*, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
