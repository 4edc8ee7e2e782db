// SPDX-License-Identifier: Apache-2.0
// T tokens, N heads, H head width.
#include <cmath>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/sparse_attention.h"

namespace strata::ops::cpu {
namespace {

// One query of one head.
struct Row {
  const SparseAttentionArgs& args;
  const SparseKeys& keys;
  int64_t index;  // in [T, N]

  [[nodiscard]] int64_t width() const { return args.width(); }
  [[nodiscard]] DType dtype() const { return args.q.dtype; }
  [[nodiscard]] const void* key(int64_t at) const {
    const void* row = nullptr;
    keys.find_rows(at, 1, &row);
    return row;
  }
  [[nodiscard]] float dot(const TensorView& tensor, const void* row, int64_t first = 0) const {
    float sum = 0;
    for (int64_t h = 0; h < width(); ++h) {
      sum += load_element(tensor.data, dtype(), index * width() + h) *
             load_element(row, dtype(), first + h);
    }
    return sum;
  }
  [[nodiscard]] float score(int64_t at) const { return dot(args.q, key(at)) * args.scale; }
};

// The sums of a query row over its sink and the keys so far.
struct OnlineSoftmax {
  float max;
  float sum;   // of exp(score - max)
  float* acc;  // [H] the same times the values
};

// acc += exp(score - max) k of key `at`; returns the factor before it is rounded.
float add_weighted_key(const Row& row, int64_t at, float score, OnlineSoftmax& sums) {
  const float p = std::exp(score - sums.max);
  const float rounded = round_element(row.dtype(), p);
  const void* value = row.key(at);
  for (int64_t h = 0; h < row.width(); ++h)
    sums.acc[h] += rounded * load_element(value, row.dtype(), h);
  return p;
}

// Keys [begin, begin + count), at most a block.
void attend_block(const Row& row, int64_t begin, int64_t count, OnlineSoftmax& sums) {
  float scores[kKeyBlock];
  float new_max = sums.max;
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = row.score(begin + j);
    new_max = std::max(new_max, scores[j]);
  }
  const float alpha = std::exp(sums.max - new_max);
  sums.max = new_max;
  float block_sum = 0;
  for (int64_t h = 0; h < row.width(); ++h) sums.acc[h] *= alpha;
  for (int64_t j = 0; j < count; ++j)
    block_sum += add_weighted_key(row, begin + j, scores[j], sums);
  sums.sum = sums.sum * alpha + block_sum;
}

void forward_row(const Row& row, float sink, float* acc, TensorView out, TensorView lse) {
  OnlineSoftmax sums{.max = sink, .sum = 1, .acc = acc};
  std::fill_n(acc, row.width(), 0.0f);
  for (int64_t begin = 0; begin < row.keys.count(); begin += kKeyBlock) {
    attend_block(row, begin, std::min(kKeyBlock, row.keys.count() - begin), sums);
  }
  for (int64_t h = 0; h < row.width(); ++h) {
    store_element(out.data, out.dtype, row.index * row.width() + h, acc[h] / sums.sum);
  }
  if (!lse.empty()) lse.f32()[row.index] = sums.max + std::log(sums.sum);
}

// Memory of one token's backward.
struct TokenWork {
  float* d_q;  // [N, H]
  float* d_s;  // [N] of one key
  float* p;    // [N]
};

// d_k_j += scale sum_n d_s_nj q_n + sum_n p_nj d_out_n: keys are values too.
void add_to_d_key(const SparseAttentionArgs& args, const SparseGradients& grads, int64_t token_row,
                  const TokenWork& work, float* d_key) {
  const int64_t heads = args.num_heads();
  const int64_t width = args.width();
  for (int64_t h = 0; h < width; ++h) {
    float sum = 0;
    const auto element = [&](const TensorView& view, int64_t n) {
      return load_element(view.data, args.q.dtype, (token_row * heads + n) * width + h);
    };
    for (int64_t n = 0; n < heads; ++n) sum += work.d_s[n] * element(args.q, n);
    sum *= args.scale;
    for (int64_t n = 0; n < heads; ++n) sum += work.p[n] * element(grads.d_out, n);
    d_key[h] += sum;
  }
}

// Puts p and d_s of head n and key `at` into `work`.
void compute_p_and_d_s(const Row& row, const SparseGradients& grads, int64_t n, int64_t at,
                       float delta, const TokenWork& work) {
  const float p = std::exp(row.score(at) - grads.lse.f32()[row.index]);
  const float d_p = row.dot(grads.d_out, row.key(at));
  work.p[n] = round_element(row.dtype(), p);
  work.d_s[n] = round_element(row.dtype(), p * (d_p - delta));
}

// d_q_n += d_s_n k of key `at`; the scale is still to come.
void add_to_d_q(const Row& row, int64_t n, int64_t at, const TokenWork& work) {
  const void* key = row.key(at);
  for (int64_t h = 0; h < row.width(); ++h) {
    work.d_q[n * row.width() + h] += work.d_s[n] * load_element(key, row.dtype(), h);
  }
}

// s_j = scale q . k_j, p_j = exp(s_j - lse), out = sum_j p_j k_j:
// d_s_j = p_j (d_out . k_j - delta) with delta = d_out . out, and d_q = scale sum_j d_s_j k_j.
void backward_token(const SparseAttentionArgs& args, const SparseGradients& grads,
                    const SparseToken& token, const TokenWork& work, TensorView delta) {
  const SparseKeys keys(args, *token.segment, token.row);
  const int64_t heads = args.num_heads();
  const int64_t width = args.width();
  std::fill_n(work.d_q, heads * width, 0.0f);
  for (int64_t n = 0; n < heads; ++n) {
    const Row row{args, keys, token.row * heads + n};
    delta.f32()[row.index] = row.dot(grads.d_out, grads.out.data, row.index * width);
  }
  for (int64_t at = 0; at < keys.count(); ++at) {
    for (int64_t n = 0; n < heads; ++n) {
      const Row row{args, keys, token.row * heads + n};
      compute_p_and_d_s(row, grads, n, at, delta.f32()[row.index], work);
      add_to_d_q(row, n, at, work);
    }
    add_to_d_key(args, grads, token.row, work, d_key_row(grads, keys, at));
  }
  for (int64_t i = 0; i < heads * width; ++i) {
    store_element(grads.d_q.data, grads.d_q.dtype, token.row * heads * width + i,
                  work.d_q[i] * args.scale);
  }
}

}  // namespace

void sparse_attention_reference(CpuBackend& backend, const SparseAttentionArgs& args,
                                TensorView out, TensorView lse) {
  const Scratch::Mark mark(backend.scratch());
  const SparseToken* tokens = list_tokens(backend, args);
  const int num_workers = backend.pool().num_threads();
  const TensorView acc = backend.scratch().take(DType::kF32, {num_workers, args.width()});
  backend.pool().run_each(num_tokens_of(args), [&](int64_t i, int worker) {
    const SparseKeys keys(args, *tokens[i].segment, tokens[i].row);
    for (int64_t n = 0; n < args.num_heads(); ++n) {
      forward_row({args, keys, tokens[i].row * args.num_heads() + n}, args.sinks.f32()[n],
                  acc.f32() + worker * args.width(), out, lse);
    }
  });
}

// Keys are shared by queries: one thread.
void sparse_attention_backward_reference(CpuBackend& backend, const SparseAttentionArgs& args,
                                         const SparseGradients& grads, TensorView delta) {
  const Scratch::Mark mark(backend.scratch());
  const SparseToken* tokens = list_tokens(backend, args);
  const int64_t heads = args.num_heads();
  const TokenWork work = {.d_q = backend.scratch().take(DType::kF32, {heads, args.width()}).f32(),
                          .d_s = backend.scratch().take(DType::kF32, {heads}).f32(),
                          .p = backend.scratch().take(DType::kF32, {heads}).f32()};
  if (backend.is_counting()) return;
  for (int64_t i = 0; i < num_tokens_of(args); ++i) {
    backward_token(args, grads, tokens[i], work, delta);
  }
}

}  // namespace strata::ops::cpu
