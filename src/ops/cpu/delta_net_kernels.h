// SPDX-License-Identifier: Apache-2.0
// The inner kernels of the gated delta rule: one table for each CPU path. The drivers
// (cpu/delta_net*.cc) decide items, chunks and memory and are compiled for the baseline; a kernel
// sees raw pointers only. Matrices are fp32 and padded to whole vectors of 16 lanes with zeros.
// Rows of a chunk come in pairs wherever both are multiplied by the same: row 2 i is of k_i (or
// u_i, the equation of u), row 2 i + 1 of q_i (of o). Such a matrix is called "paired".
#pragma once
#include <cstdint>

#include "ops/delta_net.h"
#include "tensor/dtype.h"

namespace strata::ops::cpu {

// Columns of a matrix lie in panels of so many lanes, each [rows][its lanes], so that a panel of a
// state (32 KiB at dk = 128) uses all of an L1; the last may be narrower.
constexpr int64_t kPanelLanes = 64;

// out[r][lane] = keep * init[r][lane], or zero without init, continued by the sum over d < depth
// of x[r x_row + d x_step] * panel[d][lane]. out may be init.
struct DeltaProduct {
  const float* x = nullptr;
  int64_t x_row = 0;
  int64_t x_step = 1;
  const float* panel = nullptr;
  int64_t panel_stride = 0;
  int64_t depth = 0;
  int64_t rows = 0;
  int64_t lanes = 0;  // a multiple of 16
  const float* init = nullptr;
  int64_t init_stride = 0;
  float keep = 1.0f;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// A matrix of an op's tensor or of scratch.
struct DeltaMatrix {
  const void* data = nullptr;
  DType type = DType::kF32;
  int64_t stride = 0;  // elements between rows
};

// q and k of `count` rows: paired rows of x / |x| in out, and of 1 / |x| in factors. q's are times
// q_scale; without q.data its rows stay as they are.
struct DeltaNormalise {
  DeltaMatrix q;
  DeltaMatrix k;
  int64_t count = 0;
  int64_t dim = 0;
  float q_scale = 1.0f;
  float* out = nullptr;  // paired [2 count][lanes]
  int64_t lanes = 0;
  float* factors = nullptr;  // paired [2 count]
};

// Rows first .. first + count - 1 of a chunk and value head. decay[j] is brought from D_{i-1,j} to
// D_ij row by row; total from G_{i-1} to G_i. Writes coefficients, paired [2 count][kDeltaChunk]:
// -e^D_ij (k_i . k_j) for j < i, then e^D_ij (q_i . k_j) for j <= i; what is behind those is zero
// with `gamma`, else not defined. gamma: e^D_ij [count][kDeltaChunk], zero for j > i.
struct DeltaDecay {
  const float* log_decay = nullptr;
  int64_t stride = 0;  // between rows of log_decay
  int64_t first = 0;
  int64_t count = 0;
  const float* scores = nullptr;  // paired [2 count][kDeltaChunk]
  float* decay = nullptr;         // [kDeltaChunk]
  float* total = nullptr;         // [1]
  float* total_exp = nullptr;     // [kDeltaChunk]: e^G_i of row first + i
  float* coefficients = nullptr;
  float* gamma = nullptr;
};

// The equations of u and o for rows first .. first + count - 1 and the lanes of a panel.
struct DeltaSolve {
  const float* coefficients = nullptr;  // paired [2 count][kDeltaChunk]
  const float* total_exp = nullptr;     // [count]
  const float* beta = nullptr;
  int64_t beta_stride = 0;
  int64_t first = 0;
  int64_t count = 0;
  int64_t lanes = 0;             // of the panel; the stride of all below
  const float* read = nullptr;   // [count or paired] k_i^T S, q_i^T S; null: S is zero
  const float* value = nullptr;  // [count]
  float* u = nullptr;            // [kDeltaChunk], rows below `first` already there
  float* z = nullptr;            // u without its factor beta [count]; null: not wanted
  float* out = nullptr;          // [count]; null: not wanted, and read is not paired
};

// The transposed equations, rows count - 1 down to 0: d_u_j -= sum_{i>j} coefficient_ij z_i with
// z_i = -beta_i d_u_i, which goes to the even rows of d_z.
struct DeltaSolveBack {
  const float* coefficients = nullptr;  // paired [2 count][kDeltaChunk]
  const float* beta = nullptr;
  int64_t beta_stride = 0;
  int64_t count = 0;
  int64_t lanes = 0;
  float* d_u = nullptr;  // [count]
  float* d_z = nullptr;  // paired [2 count]
};

// From the gradients of the coefficients (d_coefficients, paired; the even rows are those of
// e^D_ij (k_i . k_j), without the minus) to those of scores, which are added to (or, with
// `is_first`, written), and of g, which are written: d_scores paired, zero in lanes j > i, and j =
// i of even rows.
struct DeltaDecayBackward {
  const float* gamma = nullptr;     // [count][kDeltaChunk]
  const float* scores = nullptr;    // paired
  float* d_coefficients = nullptr;  // paired; overwritten
  int64_t count = 0;
  bool is_first = false;
  float* d_scores = nullptr;       // paired
  const float* d_total = nullptr;  // [count] of G_i
  const float* d_fold = nullptr;   // [kDeltaChunk] of D_63j; null: nothing follows the chunk
  float d_fold_total = 0.0f;       // of G_63
  float* column_sums = nullptr;    // [kDeltaChunk] scratch
  float* d_decay = nullptr;        // [count][kDeltaChunk] scratch
  float* d_log_decay = nullptr;
  int64_t stride = 0;  // between rows of d_log_decay
};

// Through the l2 norm: y = x f, so with m = |y|^-2 of an x without its epsilon (1, dk for q):
// d_x = f (d_y - m y (y . d_y)). Paired rows.
struct DeltaNormBackward {
  const float* y = nullptr;
  const float* d_y = nullptr;
  const float* factors = nullptr;
  int64_t lanes = 0;
  int64_t count = 0;
  int64_t dim = 0;
  float q_inverse = 1.0f;  // m of q
  void* d_q = nullptr;
  void* d_k = nullptr;
  DType type = DType::kF32;
  int64_t stride = 0;
};

struct DeltaKernels {
  void (*multiply)(const DeltaProduct& p);
  void (*normalise)(const DeltaNormalise& n);
  // keys[d][first + i] = row i of rows [count], d < dim. keys: [dim][kDeltaChunk].
  void (*transpose_keys)(const float* rows, int64_t stride, int64_t first, int64_t count,
                         int64_t dim, float* keys);
  void (*compute_decays_and_coefficients)(const DeltaDecay& d);
  void (*solve)(const DeltaSolve& s);
  // y[i] = e^x[i] for x <= 0; n a multiple of 16.
  void (*exponentiate)(const float* x, float* y, int64_t n);
  // to[i] = f32 of `columns` columns, zeros behind them to whole vectors.
  void (*load_rows)(const DeltaMatrix& from, int64_t count, int64_t columns, float* to,
                    int64_t to_stride);
  // to[i] = scale * from[i], in type.
  void (*store_rows)(const float* from, int64_t from_stride, int64_t count, int64_t columns,
                     float scale, void* to, DType type, int64_t to_stride);
  // to[i] = factors[i] * from[i], n rows of `lanes`; to may be from.
  void (*scale_rows)(const float* from, int64_t from_stride, const float* factors,
                     int64_t factor_stride, int64_t n, int64_t lanes, float* to, int64_t to_stride);
  // sums[i] (+)= a[i] . b[i], interleaved partial sums and their tree.
  void (*dot_rows)(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t n,
                   int64_t lanes, bool add, float* sums, int64_t sum_stride);
  // to[c][r] = from[r][c]; rows and columns are filled up with zeros to multiples of 16.
  void (*transpose)(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                    float* to, int64_t to_stride);
  void (*add_into)(const float* x, float* sum, int64_t n);  // sum += x, n a multiple of 16
  void (*solve_back)(const DeltaSolveBack& s);
  void (*decay_backward)(const DeltaDecayBackward& d);
  void (*norm_backward)(const DeltaNormBackward& n);
};

extern const DeltaKernels kDeltaReference;
#if defined(__x86_64__)
extern const DeltaKernels kDeltaAvx2;
extern const DeltaKernels kDeltaAvx512;
#endif

}  // namespace strata::ops::cpu
