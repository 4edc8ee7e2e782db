// SPDX-License-Identifier: Apache-2.0
// T tokens, N query heads, M key/value heads, H key width, U value width.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/attention.h"
#include "ops/cpu/cpu_backend.h"

namespace strata::ops::cpu {
namespace {

// One key/value head of one segment.
struct Head {
  const AttentionArgs& args;
  const AttentionSegment& segment;
  int64_t kv_head;

  [[nodiscard]] int64_t key_dim() const { return args.key_width(); }
  [[nodiscard]] int64_t value_dim() const { return args.value_width(); }
  [[nodiscard]] int64_t group() const { return args.q.shape[1] / args.num_kv_heads; }
  [[nodiscard]] int64_t num_rows() const { return segment.end - segment.begin; }
  [[nodiscard]] DType dtype() const { return args.q.dtype; }
  // Index of (token `row` of the segment, head `member` of the group) in [T, N].
  [[nodiscard]] int64_t query(int64_t row, int64_t member) const {
    return (segment.begin + row) * args.q.shape[1] + kv_head * group() + member;
  }
  [[nodiscard]] const char* key(int64_t position) const {
    return row(&KvRange::keys, position, key_dim());
  }
  [[nodiscard]] const char* value(int64_t position) const {
    return row(&KvRange::values, position, value_dim());
  }
  [[nodiscard]] const char* row(void* KvRange::* side, int64_t position, int64_t dim) const {
    const void* address = nullptr;
    find_kv_rows(segment.kv, side, position, 1, kv_head, dim, dtype_bytes(dtype()), &address);
    return static_cast<const char*>(address);
  }
  // sum_h tensor[index, h] * row[h]
  [[nodiscard]] float dot(const TensorView& tensor, int64_t index, const char* row) const {
    const int64_t dim = tensor.shape[2];
    float sum = 0;
    for (int64_t h = 0; h < dim; ++h) {
      sum += load_element(tensor.data, dtype(), index * dim + h) * load_element(row, dtype(), h);
    }
    return sum;
  }
  [[nodiscard]] float score(int64_t index, int64_t position) const {
    const float s = dot(args.q, index, key(position)) * args.scale;
    return args.score_cap == 0.0f ? s : args.score_cap * std::tanh(s / args.score_cap);
  }
  // d s' / d s of the capped score s'.
  [[nodiscard]] float slope(float score) const {
    if (args.score_cap == 0.0f) return 1.0f;
    const float t = score / args.score_cap;
    return 1.0f - t * t;
  }
};

// The sums of a query row over the keys so far.
struct OnlineSoftmax {
  float max = std::numeric_limits<float>::lowest();
  float sum = 0;  // of exp(score - max)
  float* acc;     // [U] the same times the values
};

// acc += exp(score - max) v of one key; returns the factor before it is rounded.
float add_weighted_value(const Head& head, int64_t position, float score, OnlineSoftmax& sums) {
  const float p = std::exp(score - sums.max);
  const float rounded = round_element(head.dtype(), p);
  const char* value = head.value(position);
  for (int64_t h = 0; h < head.value_dim(); ++h)
    sums.acc[h] += rounded * load_element(value, head.dtype(), h);
  return p;
}

// Keys [begin, begin + count), at most a block.
void attend_block(const Head& head, int64_t index, int64_t begin, int64_t count,
                  OnlineSoftmax& sums) {
  float scores[kKeyBlock];
  float new_max = sums.max;
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = head.score(index, begin + j);
    new_max = std::max(new_max, scores[j]);
  }
  const float alpha = std::exp(sums.max - new_max);
  sums.max = new_max;
  float block_sum = 0;
  for (int64_t h = 0; h < head.value_dim(); ++h) sums.acc[h] *= alpha;
  for (int64_t j = 0; j < count; ++j) {
    block_sum += add_weighted_value(head, begin + j, scores[j], sums);
  }
  sums.sum = sums.sum * alpha + block_sum;
}

// One query row; acc [U].
void forward_row(const Head& head, int64_t row, int64_t member, float* acc, TensorView out,
                 TensorView lse) {
  const int64_t index = head.query(row, member);
  const int64_t first_key = head.args.first_key(head.segment.first_position + row);
  const int64_t num_keys = head.segment.first_position + row + 1;
  OnlineSoftmax sums{.acc = acc};
  if (!head.args.sinks.empty()) {  // a key that was seen before the first and has no value
    const float sink = head.args.sinks.f32()[index % head.args.q.shape[1]];
    sums.max = std::max(sink, std::numeric_limits<float>::lowest());
    sums.sum = 1;
  }
  std::fill_n(acc, head.value_dim(), 0.0f);
  for (int64_t block = first_key / kKeyBlock; block * kKeyBlock < num_keys; ++block) {
    const int64_t begin = std::max(first_key, block * kKeyBlock);
    const int64_t end = std::min((block + 1) * kKeyBlock, num_keys);
    attend_block(head, index, begin, end - begin, sums);
  }
  for (int64_t h = 0; h < head.value_dim(); ++h) {
    store_element(out.data, out.dtype, index * head.value_dim() + h, acc[h] / sums.sum);
  }
  if (!lse.empty()) lse.f32()[index] = sums.max + std::log(sums.sum);
}

// p = exp(score - lse) and d_s = p * (d_p - delta) * slope of one (query, key), rounded for
// products.
struct Pair {
  float p;
  float d_s;
};

// d_out . out of a query row, by the chain that d_p has.
float compute_delta(const Head& head, const AttentionGradients& grads, int64_t index) {
  const char* out_row = static_cast<const char*>(grads.out.data) +
                        index * head.value_dim() * dtype_bytes(head.dtype());
  return head.dot(grads.d_out, index, out_row);
}

Pair compute_p_and_d_s(const Head& head, const AttentionGradients& grads, int64_t index,
                       int64_t position) {
  const float score = head.score(index, position);
  const float p = std::exp(score - grads.lse.f32()[index]);
  const float d_p = head.dot(grads.d_out, index, head.value(position));
  const float delta = compute_delta(head, grads, index);
  const float d_s = p * (d_p - delta) * head.slope(score);
  return {round_element(head.dtype(), p), round_element(head.dtype(), d_s)};
}

// d_q of one query row; acc [H].
void backward_query(const Head& head, const AttentionGradients& grads, int64_t row, int64_t member,
                    float* acc) {
  const int64_t index = head.query(row, member);
  std::fill_n(acc, head.key_dim(), 0.0f);
  // s = scale * q k^T
  for (int64_t position = head.args.first_key(row); position <= row; ++position) {
    const float d_s = compute_p_and_d_s(head, grads, index, position).d_s;
    const char* key = head.key(position);
    for (int64_t h = 0; h < head.key_dim(); ++h) acc[h] += d_s * load_element(key, head.dtype(), h);
  }
  for (int64_t h = 0; h < head.key_dim(); ++h) {
    store_element(grads.d_q.data, grads.d_q.dtype, index * head.key_dim() + h,
                  acc[h] * head.args.scale);
  }
}

// What a query row adds to d_key and d_value of one key: out = p v, s = scale * q k^T.
void add_d_key_and_d_value(const Head& head, const AttentionGradients& grads, int64_t index,
                           int64_t position, float* d_key, float* d_value) {
  const int64_t key_dim = head.key_dim();
  const int64_t value_dim = head.value_dim();
  const Pair pair = compute_p_and_d_s(head, grads, index, position);
  for (int64_t h = 0; h < value_dim; ++h) {
    d_value[h] += pair.p * load_element(grads.d_out.data, head.dtype(), index * value_dim + h);
  }
  for (int64_t h = 0; h < key_dim; ++h) {
    d_key[h] += pair.d_s * load_element(head.args.q.data, head.dtype(), index * key_dim + h);
  }
}

// d_k and d_v of one key; d_key [H] and d_value [U].
void backward_key(const Head& head, const AttentionGradients& grads, int64_t position, float* d_key,
                  float* d_value) {
  const int64_t key_dim = head.key_dim();
  const int64_t value_dim = head.value_dim();
  std::fill_n(d_key, key_dim, 0.0f);
  std::fill_n(d_value, value_dim, 0.0f);
  for (int64_t member = 0; member < head.group(); ++member) {
    for (int64_t row = position; row < head.num_rows(); ++row) {
      if (head.args.first_key(row) > position) break;
      add_d_key_and_d_value(head, grads, head.query(row, member), position, d_key, d_value);
    }
  }
  const int64_t row = (head.segment.begin + position) * head.args.num_kv_heads + head.kv_head;
  for (int64_t h = 0; h < key_dim; ++h) {
    store_element(grads.d_k.data, grads.d_k.dtype, row * key_dim + h, d_key[h] * head.args.scale);
  }
  for (int64_t h = 0; h < value_dim; ++h) {
    store_element(grads.d_v.data, grads.d_v.dtype, row * value_dim + h, d_value[h]);
  }
}

// Calls body(head, buffer [H + U] f32) for each key/value head of each segment.
void parallel_for_each_head(CpuBackend& backend, const AttentionArgs& args,
                            FunctionRef<void(const Head&, float*)> body) {
  Scratch::Mark mark(backend.scratch());
  const int64_t width = args.key_width() + args.value_width();
  const int64_t num_threads = backend.pool().num_threads();
  float* buffers = backend.scratch().take(DType::kF32, {num_threads, width}).f32();
  const auto num_segments = static_cast<int64_t>(args.segments.size());
  backend.pool().run_each(num_segments * args.num_kv_heads, [&](int64_t item, int worker) {
    const auto& segment = args.segments[static_cast<size_t>(item / args.num_kv_heads)];
    body(Head{args, segment, item % args.num_kv_heads}, buffers + worker * width);
  });
}

}  // namespace

void attention_reference(CpuBackend& backend, const AttentionArgs& args, TensorView out,
                         TensorView lse) {
  parallel_for_each_head(backend, args, [&](const Head& head, float* buffer) {
    for (int64_t row = 0; row < head.num_rows(); ++row) {
      for (int64_t member = 0; member < head.group(); ++member) {
        forward_row(head, row, member, buffer, out, lse);
      }
    }
  });
}

void attention_backward_reference(CpuBackend& backend, const AttentionArgs& args,
                                  const AttentionGradients& grads, TensorView delta) {
  parallel_for_each_head(backend, args, [&](const Head& head, float* buffer) {
    for (int64_t row = 0; row < head.num_rows(); ++row) {
      for (int64_t member = 0; member < head.group(); ++member) {
        backward_query(head, grads, row, member, buffer);
        const int64_t index = head.query(row, member);
        if (!delta.empty()) delta.f32()[index] = compute_delta(head, grads, index);
      }
    }
    for (int64_t position = 0; position < head.num_rows(); ++position) {
      backward_key(head, grads, position, buffer, buffer + head.key_dim());
    }
  });
}

}  // namespace strata::ops::cpu
