// SPDX-License-Identifier: Apache-2.0
// Causal convolution kernels as templates over the path; see cpu/simd.h for what may be called
// here. A block's weights and their gradients lie transposed, [K, kConvBlock], so that lanes are
// channels.
#include "ops/cpu/activation_impl.h"
#include "ops/cpu/causal_conv.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

// Calls body.operator()<Act, kTaps>(), with what models have, so that loops over taps unroll: SiLU
// and 4 taps, nothing and 3; else 0 taps.
template <typename V, typename Body>
[[gnu::always_inline]] inline void with_activation_and_taps(const CausalConvKernel& k,
                                                            Body&& body) {
  if (k.silu) {
    if (k.num_taps == 4) {
      body.template operator()<Silu<V>, 4>();
    } else {
      body.template operator()<Silu<V>, 0>();
    }
  } else if (k.num_taps == 3) {
    body.template operator()<Identity<V>, 3>();
  } else {
    body.template operator()<Identity<V>, 0>();
  }
}

// The weights and biases of a block of channels, as its kernels read them.
struct ConvBlockWeights {
  float taps[kMaxConvTaps * kConvBlock];
  float bias[kConvBlock];
};

// transposed[i, n] = rows[n, i] of [count, num_taps].
template <typename V>
[[gnu::always_inline]] inline void transpose_taps(const float* rows, int64_t count,
                                                  int64_t num_taps, float* transposed) {
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t i = 0; i < num_taps; ++i) transposed[i * kConvBlock + n] = rows[n * num_taps + i];
  }
}
template <typename V>
[[gnu::always_inline]] inline void transpose_taps_back(const float* transposed, int64_t count,
                                                       int64_t num_taps, float* rows) {
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t i = 0; i < num_taps; ++i) rows[n * num_taps + i] = transposed[i * kConvBlock + n];
  }
}

// The input `row` rows after the segment's first, from channel `first` on; row >= 1 - K.
template <typename V, typename X>
[[gnu::always_inline]] inline const X* conv_input(const CausalConvKernel& k,
                                                  const StateSegment& segment, int64_t row,
                                                  int64_t first, const X* zeros) {
  if (row >= 0) return static_cast<const X*>(k.x) + (segment.begin + row) * k.x_stride + first;
  if (segment.first_position + row < 0) return zeros;
  const int64_t kept = k.num_taps - 1 + row;
  return static_cast<const X*>(segment.state) + kept * k.num_channels + first;
}

// taps[i]: the input that weight i multiplies in output `row`.
template <typename V, typename X>
[[gnu::always_inline]] inline void find_conv_inputs(const CausalConvKernel& k,
                                                    const StateSegment& segment, int64_t row,
                                                    int64_t num_taps, int64_t first, const X* zeros,
                                                    const X** taps) {
  for (int64_t i = 0; i < num_taps; ++i) {
    taps[i] = conv_input<V>(k, segment, row - num_taps + 1 + i, first, zeros);
  }
}

// Those of channels [begin, end); no bias is zero.
template <typename V>
[[gnu::always_inline]] inline void load_conv_weights(const CausalConvKernel& k, int64_t num_taps,
                                                     int64_t begin, int64_t end,
                                                     ConvBlockWeights& weights) {
  transpose_taps<V>(k.weight + begin * num_taps, end - begin, num_taps, weights.taps);
  for (int64_t n = 0; n < end - begin; ++n) {
    weights.bias[n] = k.bias == nullptr ? 0.0f : k.bias[begin + n];
  }
}

// z of a chunk of channels, `n` channels into the block: one chain over the taps.
template <typename V, typename X, typename P>
[[gnu::always_inline]] inline auto convolve_chunk(const X* const* taps,
                                                  const ConvBlockWeights& weights, int64_t num_taps,
                                                  int64_t n, P part) {
  auto z = V::load(weights.bias + n, part);
  for (int64_t i = 0; i < num_taps; ++i) {
    z = V::fma(V::load(weights.taps + i * kConvBlock + n, part), V::load(taps[i] + n, part), z);
  }
  return z;
}

// The inputs before row `end`; each comes from its own place or a later one.
template <typename V, typename X>
void store_history(const CausalConvKernel& k, const StateSegment& segment, int64_t begin,
                   int64_t count, const X* zeros) {
  const int64_t num_kept = k.num_taps - 1;
  for (int64_t j = 0; j < num_kept; ++j) {
    const int64_t row = segment.end - segment.begin - num_kept + j;
    const X* from = conv_input<V>(k, segment, row, begin, zeros);
    X* to = static_cast<X*>(segment.state) + j * k.num_channels + begin;
    for (int64_t n = 0; n < count; ++n) to[n] = from[n];
  }
}

template <typename V, typename Act, int kTaps, typename X>
void causal_conv_typed(const CausalConvKernel& k, X* y, int64_t y_stride, int64_t begin,
                       int64_t end) {
  const int64_t num_taps = kTaps == 0 ? k.num_taps : kTaps;
  ConvBlockWeights weights;
  const X zeros[kConvBlock] = {};
  load_conv_weights<V>(k, num_taps, begin, end, weights);
  for (int64_t s = 0; s < k.num_segments; ++s) {
    const StateSegment& segment = k.segments[s];
    for (int64_t t = segment.begin; t < segment.end; ++t) {
      const X* taps[kMaxConvTaps];
      find_conv_inputs<V>(k, segment, t - segment.begin, num_taps, begin, zeros, taps);
      X* y_row = y + t * y_stride + begin;
      for_chunks<V>(end - begin, [&](int64_t n, auto part) {
        V::store(y_row + n, Act::value(convolve_chunk<V>(taps, weights, num_taps, n, part)), part);
      });
    }
    if (segment.state != nullptr) store_history<V>(k, segment, begin, end - begin, zeros);
  }
}

template <typename V>
void causal_conv_block(const CausalConvKernel& k, void* y, int64_t y_stride, int64_t begin,
                       int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    with_activation_and_taps<V>(k, [&]<typename Act, int kTaps>() {
      causal_conv_typed<V, Act, kTaps, X>(k, static_cast<X*>(y), y_stride, begin, end);
    });
  });
}

// The last K rows of d_z, so that a row of d_x is written when its last d_z is known: after every
// read of the rows of x and d_y that it may lie over.
struct ConvRing {
  float rows[kMaxConvTaps * kConvBlock];
  float zeros[kConvBlock];
};

// d_x[row] = sum_j weight[K - 1 - j] d_z[row + j], of num_rows rows; `part` of a block.
template <typename V, typename DX>
[[gnu::always_inline]] inline void write_conv_d_x(const ConvRing& ring, const float* weight,
                                                  int64_t num_taps, int64_t row, int64_t num_rows,
                                                  int64_t width, DX* d_x) {
  const float* d_z[kMaxConvTaps];
  for (int64_t j = 0; j < num_taps; ++j) {
    d_z[j] = row + j < num_rows ? ring.rows + (row + j) % num_taps * kConvBlock : ring.zeros;
  }
  for_chunks<V>(width, [&](int64_t n, auto part) {
    auto sum = V::set1(0.0f);
    for (int64_t j = 0; j < num_taps; ++j) {
      const float* tap = weight + (num_taps - 1 - j) * kConvBlock;
      sum = V::fma(V::load(tap + n, part), V::load(d_z[j] + n, part), sum);
    }
    V::store(d_x + n, sum, part);
  });
}

// d_z of one row of a block, from its inputs and d_y; with kWeight adds d_z x and d_z to `sums`.
template <typename V, typename Act, bool kWeight, typename X, typename DY>
[[gnu::always_inline]] inline void compute_conv_d_z(const X* const* taps,
                                                    const ConvBlockWeights& weights,
                                                    int64_t num_taps, int64_t width, const DY* d_y,
                                                    float* d_z_row, ConvBlockWeights& sums) {
  for_chunks<V>(width, [&](int64_t n, auto part) {
    auto slope = convolve_chunk<V>(taps, weights, num_taps, n, part);
    Act::value_and_slope(slope, slope);
    const auto d_z = V::load(d_y + n, part) * slope;
    V::store(d_z_row + n, d_z, part);
    for (int64_t i = 0; kWeight && i < num_taps; ++i) {
      float* sum = sums.taps + i * kConvBlock + n;
      V::store(sum, V::fma(d_z, V::load(taps[i] + n, part), V::load(sum, part)), part);
    }
    if (kWeight) V::store(sums.bias + n, V::load(sums.bias + n, part) + d_z, part);
  });
}

// The segment's d_x, each row as soon as its last d_z is known; with kWeight adds to `sums`.
template <typename V, typename Act, bool kWeight, typename DY, typename DX, typename X>
[[gnu::always_inline]] inline void conv_segment_backward(
    const CausalConvKernel& k, const StateSegment& segment, const CausalConvGradients& grads,
    const X* zeros, const ConvBlockWeights& weights, int64_t num_taps, int64_t begin, int64_t width,
    ConvRing& ring, ConvBlockWeights& sums) {
  const int64_t num_rows = segment.end - segment.begin;
  const DY* d_y = static_cast<const DY*>(grads.d_y) + segment.begin * grads.d_y_stride + begin;
  DX* d_x = static_cast<DX*>(grads.d_x) + segment.begin * grads.d_x_stride + begin;
  for (int64_t row = 0; row < num_rows; ++row) {
    const X* taps[kMaxConvTaps];
    find_conv_inputs<V>(k, segment, row, num_taps, begin, zeros, taps);
    compute_conv_d_z<V, Act, kWeight>(taps, weights, num_taps, width, d_y + row * grads.d_y_stride,
                                      ring.rows + row % num_taps * kConvBlock, sums);
    const int64_t known = row - num_taps + 1;
    if (known < 0) continue;
    write_conv_d_x<V>(ring, weights.taps, num_taps, known, num_rows, width,
                      d_x + known * grads.d_x_stride);
  }
  const int64_t first = num_rows < num_taps ? 0 : num_rows - num_taps + 1;
  for (int64_t row = first; row < num_rows; ++row) {
    write_conv_d_x<V>(ring, weights.taps, num_taps, row, num_rows, width,
                      d_x + row * grads.d_x_stride);
  }
}

// y = act(z), z[t] = bias + sum_i weight[i] x[t - K + 1 + i]: with d_z = d_y act'(z),
// d_x[t] = sum_j weight[K - 1 - j] d_z[t + j], d_weight[i] += d_z[t] x[t - K + 1 + i] and d_bias +=
// d_z[t].
template <typename V, typename Act, int kTaps, bool kWeight, typename X, typename DY, typename DX>
void causal_conv_backward_typed(const CausalConvKernel& k, const CausalConvGradients& grads,
                                int64_t begin, int64_t end) {
  const int64_t num_taps = kTaps == 0 ? k.num_taps : kTaps;
  const int64_t width = end - begin;
  ConvBlockWeights weights;
  ConvBlockWeights sums;
  ConvRing ring = {};
  const X zeros[kConvBlock] = {};
  load_conv_weights<V>(k, num_taps, begin, end, weights);
  if (kWeight) {
    for (float& sum : sums.taps) sum = 0.0f;
    for (float& sum : sums.bias) sum = 0.0f;
  }
  if (grads.d_weight != nullptr) {
    transpose_taps<V>(grads.d_weight + begin * num_taps, width, num_taps, sums.taps);
  }
  for (int64_t n = 0; grads.d_bias != nullptr && n < width; ++n) {
    sums.bias[n] = grads.d_bias[begin + n];
  }
  for (int64_t s = 0; s < k.num_segments; ++s) {
    conv_segment_backward<V, Act, kWeight, DY, DX>(k, k.segments[s], grads, zeros, weights,
                                                   num_taps, begin, width, ring, sums);
  }
  if (grads.d_weight != nullptr) {
    transpose_taps_back<V>(sums.taps, width, num_taps, grads.d_weight + begin * num_taps);
  }
  for (int64_t n = 0; grads.d_bias != nullptr && n < width; ++n) {
    grads.d_bias[begin + n] = sums.bias[n];
  }
}

template <typename V>
void causal_conv_backward_block(const CausalConvKernel& k, const CausalConvGradients& grads,
                                int64_t begin, int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    with_type<V>(grads.d_y_type, [&]<typename DY>() {
      with_type<V>(grads.d_x_type, [&]<typename DX>() {
        with_activation_and_taps<V>(k, [&]<typename Act, int kTaps>() {
          if (grads.d_weight == nullptr && grads.d_bias == nullptr) {
            causal_conv_backward_typed<V, Act, kTaps, false, X, DY, DX>(k, grads, begin, end);
          } else {
            causal_conv_backward_typed<V, Act, kTaps, true, X, DY, DX>(k, grads, begin, end);
          }
        });
      });
    });
  });
}

template void causal_conv_block<ThisPath>(const CausalConvKernel&, void*, int64_t, int64_t,
                                          int64_t);
template void causal_conv_backward_block<ThisPath>(const CausalConvKernel&,
                                                   const CausalConvGradients&, int64_t, int64_t);

}  // namespace strata::ops::cpu
