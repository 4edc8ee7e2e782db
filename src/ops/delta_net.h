// SPDX-License-Identifier: Apache-2.0
// The gated delta rule over ragged segments, in chunks. Source of the formula: HF
// modeling_qwen3_5.py, torch_recurrent_gated_delta_rule. A value head h reads key head
// h / (Vh / Kh); q and k are divided by their l2 norms (x / sqrt(sum x^2 + 1e-6)), q also by
// sqrt(dk); its state S [dk, dv] is zero before position 0, and a row does
//   S *= e^g;  u = beta (v - S^T k);  S += k u^T;  o = S^T q
// T rows of the batch, Kh key heads, Vh value heads, dk and dv their widths.
// Computed in chunks of 64 rows aligned to position 0, in fp32, the same for training, prefill and
// decode. With S the state at the chunk's start, G_i the chain of g from there to row i, D_ij the
// chain of g over rows j + 1 .. i, both ascending:
//   u_i = beta_i (v_i - e^G_i k_i^T S - sum_{j<i} e^D_ij (k_i . k_j) u_j)
//   o_i = e^G_i q_i^T S + sum_{j<=i} e^D_ij (q_i . k_j) u_j
// and S becomes e^G_63 S + sum_j k_j (e^D_63j u_j)^T behind the last row. A dot of dk terms is one
// fma chain over ascending columns; a sum over j continues what stands before it, j ascending; a
// norm is sixteen interleaved partial sums and their tree. So a row depends on the rows of its
// sequence up to itself alone, and neither on threads, other segments nor on how the sequence was
// split into segments. No exponent is positive and none is a difference, so nothing overflows at
// any decay, and g may be -inf. Every path gives the same bits. Rows of no segment are left as they
// are. Engine thread only; outputs may not alias inputs.
#pragma once
#include <span>

#include "backend/backend.h"
#include "ops/state_segment.h"
#include "tensor/view.h"

namespace strata::ops {

constexpr int64_t kDeltaChunk = 64;

// A row of qkv is [q | k | v], each head after head.
struct DeltaNetShape {
  int64_t num_key_heads = 0;    // Kh
  int64_t num_value_heads = 0;  // Vh, a multiple of Kh
  int64_t key_dim = 0;          // dk
  int64_t value_dim = 0;        // dv

  [[nodiscard]] int64_t group() const { return num_value_heads / num_key_heads; }
  [[nodiscard]] int64_t width() const {
    return 2 * num_key_heads * key_dim + num_value_heads * value_dim;
  }
};

// Bytes of a segment's state, a multiple of 64: the state at its chunk's start, and of the chunk's
// rows so far the keys, u and decays. All fp32; what it holds before position 0 is not read. A call
// has one segment of a state; on a counting backend a segment need not bring the one it has.
int64_t delta_state_bytes(const DeltaNetShape& shape);
// Bytes at the begin of a state, a multiple of 64, that hold all that a row which does not end a
// chunk changes of what earlier rows wrote: the decays. Where they are put back, the rows behind
// them have not been, whatever stands in the rest.
int64_t delta_decay_bytes(const DeltaNetShape& shape);

struct DeltaNetArgs {
  DeltaNetShape shape;
  TensorView qkv;        // [T, width] f32 or bf16
  TensorView log_decay;  // g [T, Vh] f32, <= 0
  TensorView beta;       // [T, Vh] f32
  std::span<const StateSegment> segments;
};

// Writes out [T, Vh, dv], of qkv's type. Scratch: a chunk of a key head for each worker.
void delta_net(Backend& backend, const DeltaNetArgs& args, TensorView out);

// The backward of segments without state. Makes states and u again. d_out [T, Vh, dv] and d_qkv [T,
// width] are f32 or bf16 each; writes d_qkv, d_log_decay and d_beta [T, Vh] f32. All sums are fp32
// chains as forward's; value heads that share a key head add into its gradients in ascending order.
// Scratch, for each worker: of the longest segment the states at the chunks' starts (dk dv floats a
// chunk) and u's factor (dv floats a row) for the value heads of one key head, and that one's
// products with its keys (128 floats a row).
void delta_net_backward(Backend& backend, const DeltaNetArgs& args, TensorView d_out,
                        TensorView d_qkv, TensorView d_log_decay, TensorView d_beta);

// Flops (two for a product and its addition) of a sequence's first `tokens` rows: all that the
// formulas above need, and no more of the triangles than they use.
double delta_net_flops(const DeltaNetShape& shape, int64_t tokens);
double delta_net_backward_flops(const DeltaNetShape& shape, int64_t tokens);

// What a kind of backend is given for the backward (ops/rows.h).
struct DeltaGradients {
  TensorView d_out;        // [T, Vh, dv]
  TensorView d_qkv;        // [T, width]
  TensorView d_log_decay;  // [T, Vh]
  TensorView d_beta;       // [T, Vh]
};

}  // namespace strata::ops
