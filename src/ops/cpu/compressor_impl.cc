// SPDX-License-Identifier: Apache-2.0
// Compressors as templates over the path; see cpu/simd.h for what may be called here.
#include "ops/cpu/compressor.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

// The terms of one entry: where the values, gates and biases of the block's first channel lie.
template <typename V>
struct CompressTerms {
  int64_t count = 0;
  const float* kv[2 * kMaxCompressRatio];
  const float* gate[2 * kMaxCompressRatio];
  const float* bias[2 * kMaxCompressRatio];
  int64_t offset[2 * kMaxCompressRatio];  // of the gradient in [T, W]
  int64_t bias_offset[2 * kMaxCompressRatio];

  // Adds the term of the token at `position`, whose channels start at `channel`.
  [[gnu::always_inline]] void add_term(const CompressorKernel& k, const StateSegment& segment,
                                       int64_t position, int64_t channel) {
    const int64_t row = position - segment.first_position;
    if (row >= 0) {
      kv[count] = k.kv + (segment.begin + row) * k.row_stride + channel;
      gate[count] = k.gate + (segment.begin + row) * k.row_stride + channel;
    } else {
      const int64_t span = k.overlap ? 2 * k.ratio : k.ratio;
      kv[count] =
          static_cast<const float*>(segment.state) + position % span * 2 * k.width + channel;
      gate[count] = kv[count] + k.width;
    }
    offset[count] = (segment.begin + row) * k.width + channel;
    bias_offset[count] = position % k.ratio * k.width + channel;
    bias[count] = k.bias + bias_offset[count];
    ++count;
  }
  // Collects window `window`, channels from `begin` on.
  [[gnu::always_inline]] void collect_window(const CompressorKernel& k, const StateSegment& segment,
                                             int64_t window, int64_t begin) {
    count = 0;
    if (k.overlap && window > 0) {
      for (int64_t j = 0; j < k.ratio; ++j) add_term(k, segment, (window - 1) * k.ratio + j, begin);
    }
    const int64_t own = k.overlap ? k.channels + begin : begin;
    for (int64_t j = 0; j < k.ratio; ++j) add_term(k, segment, window * k.ratio + j, own);
  }
  template <typename P>
  [[gnu::always_inline]] auto logit(int64_t j, int64_t i, P part) const {
    return V::load(gate[j] + i, part) + V::load(bias[j] + i, part);
  }
};

// Calls body(segment, window, entry) for every entry of the pass.
template <typename V, typename Body>
[[gnu::always_inline]] inline void for_entries(const CompressorKernel& k, Body&& body) {
  int64_t entry = 0;
  for (int64_t s = 0; s < k.num_segments; ++s) {
    const StateSegment& segment = k.segments[s];
    const int64_t end = (segment.first_position + segment.end - segment.begin) / k.ratio;
    for (int64_t w = segment.first_position / k.ratio; w < end; ++w) body(segment, w, entry++);
  }
}

template <typename V>
struct CompressSums {
  typename V::F max;
  typename V::F sum;    // of exp(logit - max)
  typename V::F value;  // the entry

  template <typename P>
  [[gnu::always_inline]] CompressSums(const CompressTerms<V>& terms, int64_t i, P part) {
    max = terms.logit(0, i, part);
    for (int64_t j = 1; j < terms.count; ++j) max = V::max(terms.logit(j, i, part), max);
    sum = V::set1(0.0f);
    value = V::set1(0.0f);
    for (int64_t j = 0; j < terms.count; ++j) {
      const auto e = exp_below_overflow<V>(terms.logit(j, i, part) - max);
      sum = sum + e;
      value = V::fma(e, V::load(terms.kv[j] + i, part), value);
    }
    value = value / sum;
  }
};

template <typename V>
void compress_block(const CompressorKernel& k, float* entries, int64_t begin, int64_t end) {
  CompressTerms<V> terms;
  for_entries<V>(k, [&](const StateSegment& segment, int64_t window, int64_t entry) {
    terms.collect_window(k, segment, window, begin);
    for_chunks<V>(end - begin, [&](int64_t i, auto part) {
      V::store(entries + entry * k.channels + begin + i, CompressSums<V>(terms, i, part).value,
               part);
    });
  });
}

// Goes back through a chunk of an entry's channels, `i` channels into the block, of gradient d:
// c = sum_j p_j kv_j, p = softmax(logits): d_kv_j = p_j d, d_logit_j = p_j d (kv_j - c)
template <typename V, typename D, typename F, typename P>
[[gnu::always_inline]] inline void compress_backward_chunk(const CompressorGradients& g,
                                                           const CompressTerms<V>& terms, F d,
                                                           int64_t i, P part) {
  const CompressSums<V> sums(terms, i, part);
  for (int64_t j = 0; j < terms.count; ++j) {
    const auto p = exp_below_overflow<V>(terms.logit(j, i, part) - sums.max) / sums.sum;
    const auto d_kv = p * d;
    const auto d_gate = d_kv * (V::load(terms.kv[j] + i, part) - sums.value);
    V::store(static_cast<D*>(g.d_kv) + terms.offset[j] + i, d_kv, part);
    V::store(static_cast<D*>(g.d_gate) + terms.offset[j] + i, d_gate, part);
    if (g.d_bias == nullptr) continue;
    float* d_bias = g.d_bias + terms.bias_offset[j] + i;
    V::store(d_bias, V::load(d_bias, part) + d_gate, part);
  }
}

template <typename V>
void compress_backward_block(const CompressorKernel& k, const CompressorGradients& g, int64_t begin,
                             int64_t end) {
  with_type<V>(g.type, [&]<typename D>() {
    CompressTerms<V> terms;
    for_entries<V>(k, [&](const StateSegment& segment, int64_t window, int64_t entry) {
      terms.collect_window(k, segment, window, begin);
      for_chunks<V>(end - begin, [&](int64_t i, auto part) {
        const auto d = V::load(g.d_entries + entry * k.channels + begin + i, part);
        compress_backward_chunk<V, D>(g, terms, d, i, part);
      });
    });
  });
}

template void compress_block<ThisPath>(const CompressorKernel&, float*, int64_t, int64_t);
template void compress_backward_block<ThisPath>(const CompressorKernel&, const CompressorGradients&,
                                                int64_t, int64_t);

}  // namespace strata::ops::cpu
