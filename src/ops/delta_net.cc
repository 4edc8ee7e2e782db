// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_net.h"

#include <algorithm>

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_heads(const TensorView& view, const DeltaNetArgs& args) {
  const Shape want{args.qkv.shape[0], args.shape.num_value_heads};
  CHECK(view.dtype == DType::kF32 && view.shape == want, view.dtype, view.shape.to_string(),
        want.to_string());
}

void check_out(const TensorView& view, const DeltaNetArgs& args) {
  const Shape want{args.qkv.shape[0], args.shape.num_value_heads, args.shape.value_dim};
  CHECK(is_float(view.dtype) && view.shape == want && view.dense(), view.dtype,
        view.shape.to_string(), want.to_string(), view.row_stride);
}

void check_shape(const DeltaNetShape& s) {
  CHECK(s.num_key_heads > 0 && s.num_value_heads > 0 && s.num_value_heads % s.num_key_heads == 0,
        s.num_key_heads, s.num_value_heads);
  CHECK(s.key_dim > 0, s.key_dim);
  CHECK(s.value_dim > 0, s.value_dim);
}

// A plan counts segments whose state does not exist yet.
void check_args(const Backend& backend, const DeltaNetArgs& args) {
  check_shape(args.shape);
  CHECK(is_float(args.qkv.dtype) && args.qkv.shape.rank() == 2 &&
            args.qkv.shape[1] == args.shape.width(),
        args.qkv.dtype, args.qkv.shape.to_string(), args.shape.width());
  check_heads(args.log_decay, args);
  check_heads(args.beta, args);
  for (const StateSegment& s : args.segments) {
    CHECK(0 <= s.begin && s.begin <= s.end && s.end <= args.qkv.shape[0], s.begin, s.end,
          args.qkv.shape[0]);
    const bool has_state = s.state != nullptr || backend.is_counting();
    CHECK(s.first_position == 0 || (s.first_position > 0 && has_state), s.first_position);
  }
}

// Pairs of rows in a chunk of n, without and with a row and itself.
double pairs_below(int64_t n) { return 0.5 * static_cast<double>(n * (n - 1)); }
double pairs_up_to(int64_t n) { return 0.5 * static_cast<double>(n * (n + 1)); }

// Calls body(n, reads, folds) for the chunks of `tokens` rows: n rows; whether their state is not
// zero; whether another chunk follows.
template <typename Body>
void for_each_chunk(int64_t tokens, Body&& body) {
  for (int64_t begin = 0; begin < tokens; begin += kDeltaChunk) {
    const int64_t n = std::min(kDeltaChunk, tokens - begin);
    body(n, begin > 0, begin + n < tokens);
  }
}

}  // namespace

int64_t delta_state_bytes(const DeltaNetShape& shape) {
  check_shape(shape);
  const int64_t lanes = (shape.value_dim + 15) / 16 * 16;
  const int64_t member = (shape.key_dim + kDeltaChunk) * lanes;
  return delta_decay_bytes(shape) +
         shape.num_key_heads * (shape.key_dim * kDeltaChunk + shape.group() * member) * 4;
}

int64_t delta_decay_bytes(const DeltaNetShape& shape) {
  return shape.num_value_heads * (kDeltaChunk + 16) * 4;
}

void delta_net(Backend& backend, const DeltaNetArgs& args, TensorView out) {
  check_args(backend, args);
  check_out(out, args);
  CHECK(out.dtype == args.qkv.dtype, out.dtype, args.qkv.dtype);
  backend.call()->delta_net.forward(backend, with_staged_segments(backend, args), out);
}

void delta_net_backward(Backend& backend, const DeltaNetArgs& args, TensorView d_out,
                        TensorView d_qkv, TensorView d_log_decay, TensorView d_beta) {
  check_args(backend, args);
  for (const StateSegment& s : args.segments) {
    CHECK(s.first_position == 0 && s.state == nullptr, s.first_position);
  }
  check_out(d_out, args);
  CHECK(is_float(d_qkv.dtype) && d_qkv.shape == args.qkv.shape, d_qkv.dtype,
        d_qkv.shape.to_string(), args.qkv.shape.to_string());
  check_heads(d_log_decay, args);
  check_heads(d_beta, args);
  backend.call()->delta_net.backward(backend, with_staged_segments(backend, args),
                                     {d_out, d_qkv, d_log_decay, d_beta});
}

double delta_net_flops(const DeltaNetShape& shape, int64_t tokens) {
  const auto dk = static_cast<double>(shape.key_dim);
  const auto dv = static_cast<double>(shape.value_dim);
  double of_key_head = 0;
  double of_value_head = 0;
  for_each_chunk(tokens, [&](int64_t n, bool reads, bool folds) {
    of_key_head += (pairs_below(n) + pairs_up_to(n)) * dk;
    of_value_head += (pairs_below(n) + pairs_up_to(n)) * dv;
    if (reads) of_value_head += 2 * static_cast<double>(n) * dk * dv;
    if (folds) of_value_head += static_cast<double>(n) * dk * dv;
  });
  return 2 * (static_cast<double>(shape.num_key_heads) * of_key_head +
              static_cast<double>(shape.num_value_heads) * of_value_head);
}

// A key head has scores again, then two products with each of their gradients; a value head u and
// states again, P^T d_o, the transposed equations, the gradients of both coefficients, five
// products with the state before the chunk and two with the one behind it.
double delta_net_backward_flops(const DeltaNetShape& shape, int64_t tokens) {
  const auto dk = static_cast<double>(shape.key_dim);
  const auto dv = static_cast<double>(shape.value_dim);
  double of_key_head = 0;
  double of_value_head = 0;
  for_each_chunk(tokens, [&](int64_t n, bool reads, bool folds) {
    of_key_head += 3 * (pairs_below(n) + pairs_up_to(n)) * dk;
    of_value_head += (3 * pairs_below(n) + 2 * pairs_up_to(n)) * dv;
    if (reads) of_value_head += 5 * static_cast<double>(n) * dk * dv;
    if (folds) of_value_head += 3 * static_cast<double>(n) * dk * dv;
  });
  return 2 * (static_cast<double>(shape.num_key_heads) * of_key_head +
              static_cast<double>(shape.num_value_heads) * of_value_head);
}

}  // namespace strata::ops
