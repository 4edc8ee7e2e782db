// SPDX-License-Identifier: Apache-2.0
// Forward. An item is a key head of a segment: it walks the chunks, and in each the value heads of
// its group, panel by panel of their columns, which do not know each other. A segment without state
// works in a worker's own. T rows, Kh key heads, Vh value heads, dk and dv their widths.
#include "ops/cpu/delta_net.h"

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/path_table.h"

namespace strata::ops::cpu {
namespace {

// Memory of one worker.
struct Workspace {
  float* rows;          // paired [2 kDeltaChunk][lanes of dk]: k and q, normalised
  float* factors;       // paired [2 kDeltaChunk]
  float* scores;        // paired [2 kDeltaChunk][kDeltaChunk]
  float* coefficients;  // likewise
  float* total_exp;     // [kDeltaChunk]
  float* decay_exp;     // [kDeltaChunk]
  float* read;          // paired [2 kDeltaChunk][kPanelLanes]
  float* value;         // [kDeltaChunk][kPanelLanes]
  float* out;           // [kDeltaChunk][kPanelLanes]
  float* state;         // of a key head, for segments without their own
};

// Rows of a segment in one chunk.
struct Rows {
  int64_t row;    // of the batch
  int64_t first;  // of the chunk
  int64_t count;
  bool reads;  // the chunk is not the sequence's first: its state is not zero
  bool folds;  // the chunk ends here, and something can follow
};

struct Forward {
  const DeltaKernels& kernels;
  const DeltaNetArgs& args;
  TensorView out;
  DeltaLayout layout;

  [[nodiscard]] Workspace take_workspace(Scratch& scratch) const;
  void forward_key_head(const StateSegment& segment, int64_t head, const Workspace& work) const;
  void forward_chunk(const Rows& rows, int64_t head, const DeltaState& state,
                     const Workspace& work) const;
  void forward_value_head(const Rows& rows, int64_t head, int64_t member, const DeltaState& state,
                          const Workspace& work) const;
  void forward_panel(const Rows& rows, int64_t value_head, int64_t member, int64_t begin,
                     int64_t width, int64_t columns, const DeltaState& state,
                     const Workspace& work) const;
  void update_decays_and_coefficients(const Rows& rows, int64_t value_head, int64_t member,
                                      const DeltaState& state, const Workspace& work) const;
  void multiply_by_state(const Rows& rows, const float* panel, int64_t width,
                         const Workspace& work) const;
  void store_outputs(const Rows& rows, int64_t value_head, int64_t begin, int64_t width,
                     int64_t columns, const Workspace& work) const;
};

Workspace Forward::take_workspace(Scratch& scratch) const {
  const auto floats = [&](int64_t n) { return static_cast<float*>(scratch.take(4 * n)); };
  Workspace work{};
  work.rows = floats(layout.paired_keys());
  work.factors = floats(2 * kDeltaChunk);
  work.scores = floats(2 * kDeltaChunk * kDeltaChunk);
  work.coefficients = floats(2 * kDeltaChunk * kDeltaChunk);
  work.total_exp = floats(kDeltaChunk);
  work.decay_exp = floats(kDeltaChunk);
  work.read = floats(2 * kDeltaChunk * kPanelLanes);
  work.value = floats(kDeltaChunk * kPanelLanes);
  work.out = floats(kDeltaChunk * kPanelLanes);
  work.state = floats(layout.decays() + layout.key_head());
  return work;
}

// Rows i < `count` of paired rows from `first` of a chunk on times the chunk's keys, as far as row
// i sees them (whole vectors; what is behind is not defined).
void compute_delta_scores(const DeltaKernels& kernels, const DeltaLayout& layout, const float* rows,
                          const float* keys, int64_t first, int64_t count, float* scores) {
  constexpr int64_t kTokens = 3;
  for (int64_t i = 0; i < count; i += kTokens) {
    const int64_t tokens = std::min(kTokens, count - i);
    kernels.multiply({.x = rows + 2 * i * layout.key_lanes,
                      .x_row = layout.key_lanes,
                      .panel = keys,
                      .panel_stride = kDeltaChunk,
                      .depth = layout.shape.key_dim,
                      .rows = 2 * tokens,
                      .lanes = (first + i + tokens + 15) / 16 * 16,
                      .out = scores + 2 * i * kDeltaChunk,
                      .out_stride = kDeltaChunk});
  }
}

// Brings the decays of the state up to the last row, too.
void Forward::update_decays_and_coefficients(const Rows& rows, int64_t value_head, int64_t member,
                                             const DeltaState& state, const Workspace& work) const {
  kernels.compute_decays_and_coefficients(
      {.log_decay = args.log_decay.f32() + rows.row * args.log_decay.row_stride + value_head,
       .stride = args.log_decay.row_stride,
       .first = rows.first,
       .count = rows.count,
       .scores = work.scores,
       .decay = state.decay(member),
       .total = state.total(member),
       .total_exp = work.total_exp,
       .coefficients = work.coefficients});
  if (rows.folds) kernels.exponentiate(state.decay(member), work.decay_exp, kDeltaChunk);
}

// k_i^T S and q_i^T S of a panel.
void Forward::multiply_by_state(const Rows& rows, const float* panel, int64_t width,
                                const Workspace& work) const {
  kernels.multiply({.x = work.rows,
                    .x_row = layout.key_lanes,
                    .panel = panel,
                    .panel_stride = width,
                    .depth = layout.shape.key_dim,
                    .rows = 2 * rows.count,
                    .lanes = width,
                    .out = work.read,
                    .out_stride = width});
}

// Stores the outputs of a panel's columns, from `begin` on.
void Forward::store_outputs(const Rows& rows, int64_t value_head, int64_t begin, int64_t width,
                            int64_t columns, const Workspace& work) const {
  const int64_t stride = layout.shape.num_value_heads * layout.shape.value_dim;
  const int64_t at = rows.row * stride + value_head * layout.shape.value_dim + begin;
  kernels.store_rows(work.out, width, rows.count, columns, 1.0f,
                     static_cast<char*>(out.data) + at * dtype_bytes(out.dtype), out.dtype, stride);
}

// The outputs of a panel's columns, from `begin` on, and the state behind the chunk.
void Forward::forward_panel(const Rows& rows, int64_t value_head, int64_t member, int64_t begin,
                            int64_t width, int64_t columns, const DeltaState& state,
                            const Workspace& work) const {
  float* panel = state.state(member) + layout.shape.key_dim * begin;
  float* u = state.u(member) + kDeltaChunk * begin;
  if (rows.reads) multiply_by_state(rows, panel, width, work);
  kernels.load_rows(delta_matrix_at(args.qkv, rows.row, layout.v_column(value_head) + begin),
                    rows.count, columns, work.value, width);
  kernels.solve({.coefficients = work.coefficients,
                 .total_exp = work.total_exp,
                 .beta = args.beta.f32() + rows.row * args.beta.row_stride + value_head,
                 .beta_stride = args.beta.row_stride,
                 .first = rows.first,
                 .count = rows.count,
                 .lanes = width,
                 .read = rows.reads ? work.read : nullptr,
                 .value = work.value,
                 .u = u,
                 .out = work.out});
  store_outputs(rows, value_head, begin, width, columns, work);
  if (!rows.folds) return;
  add_chunk_to_state(kernels, layout,
                     {.keys = state.keys(),
                      .decay_exp = work.decay_exp,
                      .total_exp = work.total_exp[rows.count - 1],
                      .before = rows.reads ? panel : nullptr,
                      .u = u,
                      .behind = panel,
                      .width = width});
}

void Forward::forward_value_head(const Rows& rows, int64_t head, int64_t member,
                                 const DeltaState& state, const Workspace& work) const {
  const int64_t value_head = head * layout.group + member;
  update_decays_and_coefficients(rows, value_head, member, state, work);
  for_delta_panels(layout.shape.value_dim, [&](int64_t begin, int64_t width, int64_t columns) {
    forward_panel(rows, value_head, member, begin, width, columns, state, work);
  });
}

void Forward::forward_chunk(const Rows& rows, int64_t head, const DeltaState& state,
                            const Workspace& work) const {
  normalise_qk(kernels, layout,
               {.qkv = args.qkv,
                .head = head,
                .row = rows.row,
                .first = rows.first,
                .count = rows.count,
                .rows = work.rows,
                .factors = work.factors,
                .keys = state.keys()});
  compute_delta_scores(kernels, layout, work.rows, state.keys(), rows.first, rows.count,
                       work.scores);
  for (int64_t member = 0; member < layout.group; ++member) {
    forward_value_head(rows, head, member, state, work);
  }
}

// Those from `row` to the end of its chunk or of the segment.
Rows rows_of_chunk(const StateSegment& segment, int64_t row) {
  const int64_t position = segment.first_position + row - segment.begin;
  const int64_t first = position % kDeltaChunk;
  const int64_t count = std::min(kDeltaChunk - first, segment.end - row);
  const bool ends = first + count == kDeltaChunk;
  return {.row = row,
          .first = first,
          .count = count,
          .reads = position >= kDeltaChunk,
          .folds = ends && (segment.state != nullptr || row + count < segment.end)};
}

void Forward::forward_key_head(const StateSegment& segment, int64_t head,
                               const Workspace& work) const {
  auto* own = static_cast<float*>(segment.state);
  const DeltaState state = own == nullptr
                               ? DeltaState{layout, work.state, work.state + layout.decays()}
                               : DeltaState{layout, own + head * layout.decays(),
                                            own + layout.shape.num_key_heads * layout.decays() +
                                                head * layout.key_head()};
  for (int64_t row = segment.begin; row < segment.end;) {
    const Rows rows = rows_of_chunk(segment, row);
    forward_chunk(rows, head, state, work);
    row += rows.count;
  }
}

}  // namespace

void delta_net(CpuBackend& backend, const DeltaNetArgs& args, TensorView out) {
  const HostAccess access(backend.allocator());
  const Forward forward{*path_row(backend.path()).delta, args, out, DeltaLayout(args.shape)};
  const int64_t num_heads = args.shape.num_key_heads;
  const DeltaLayout& layout = forward.layout;
  CHECK(delta_state_bytes(args.shape) == num_heads * (layout.decays() + layout.key_head()) * 4 &&
            delta_decay_bytes(args.shape) == num_heads * layout.decays() * 4,
        delta_state_bytes(args.shape), delta_decay_bytes(args.shape));
  const int64_t num_items = static_cast<int64_t>(args.segments.size()) * num_heads;
  if (num_items == 0) return;
  Scratch::Mark mark(backend.scratch());
  const auto* workspaces =
      backend.take_workspaces([&] { return forward.take_workspace(backend.scratch()); });
  backend.pool().run_each(num_items, [&](int64_t i, int worker) {
    forward.forward_key_head(args.segments[static_cast<size_t>(i / num_heads)], i % num_heads,
                             workspaces[worker]);
  });
}

}  // namespace strata::ops::cpu
