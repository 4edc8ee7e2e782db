// SPDX-License-Identifier: Apache-2.0
// What a kind of backend does: for each op a row of functions, which the op calls with arguments
// that it has checked. A backend adds its functions in a folder of its own (ops/cpu/ is one), and a
// table of rows that its kind names; nothing else lists kinds. What each function means, and its
// order of summation, is in the op's header. Nothing here is null.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tensor/index.h"
#include "tensor/panel.h"
#include "tensor/view.h"

namespace strata {
class Backend;
class FileAllocator;
class PageQueue;
}  // namespace strata

namespace strata::ops {

struct AdamWArgs;
struct AdamWItem;
struct AttentionArgs;
struct AttentionGradients;
struct CacheSegment;
struct CausalConvArgs;
struct CompressorArgs;
struct DeltaGatesArgs;
struct DeltaGradients;
struct DeltaNetArgs;
struct GatedNormArgs;
struct GroupBiasGradients;
struct GemmArgs;
struct GroupedArgs;
struct GroupedGradient;
struct GroupedProduct;
struct GroupedRows;
struct HeadNormRopeArgs;
struct HyperWeightsArgs;
struct IndexerArgs;
struct IndexerGradients;
struct IndexerLossArgs;
struct LogitMap;
struct PackItem;
struct RmsNormArgs;
struct RouteRows;
struct RouterArgs;
struct RunProducts;
struct SamplingParams;
struct SegmentProduct;
struct SparseAttentionArgs;
struct SparseGradients;
struct SwigluForm;
struct TailRopeArgs;
struct TensorStack;
struct TokenChoice;
enum class Activation;

struct AdamWRow {
  void (*run)(Backend&, const AdamWArgs& args, TensorView g, TensorView p, TensorView m,
              TensorView v);
  void (*list)(Backend&, const AdamWArgs& args, std::span<const AdamWItem> items);
};

struct AttentionRow {
  void (*forward)(Backend&, const AttentionArgs& args, TensorView out, TensorView lse);
  void (*backward)(Backend&, const AttentionArgs& args, const AttentionGradients& grads);
};

struct CacheWriteRow {
  void (*run)(Backend&, TensorView x, std::span<const CacheSegment> runs);
};

struct CausalConvRow {
  void (*forward)(Backend&, const CausalConvArgs& args, TensorView y);
  void (*backward)(Backend&, const CausalConvArgs& args, TensorView d_y, TensorView d_x,
                   TensorView d_weight, TensorView d_bias);
};

struct ChooseTokensRow {
  void (*choose)(Backend&, TensorView logits, TensorView lse,
                 std::span<TokenChoice* const> choices);
  void (*draw)(Backend&, TensorView logits, TensorView lse, int64_t row,
               const SamplingParams& params, uint64_t first_draw, std::span<int32_t> ids,
               std::span<float> logprobs);
  void (*topk)(Backend&, TensorView logits, TensorView lse, int64_t row, std::span<int32_t> ids,
               std::span<float> logprobs);
};

struct ClampedSwigluRow {
  void (*forward)(Backend&, const SwigluForm& form, TensorView gate, TensorView up,
                  TensorView scales, TensorView y);
  void (*backward)(Backend&, const SwigluForm& form, TensorView gate, TensorView up,
                   TensorView scales, TensorView d_y, TensorView d_gate, TensorView d_up,
                   TensorView d_scales);
};

struct CompressorRow {
  void (*forward)(Backend&, const CompressorArgs& args, TensorView entries);
  void (*backward)(Backend&, const CompressorArgs& args, TensorView d_entries, TensorView d_kv,
                   TensorView d_gate, TensorView d_bias);
};

struct DeltaGatesRow {
  void (*forward)(Backend&, const DeltaGatesArgs& args, TensorView log_decay, TensorView beta);
  void (*backward)(Backend&, const DeltaGatesArgs& args, TensorView d_log_decay, TensorView d_beta,
                   TensorView d_a, TensorView d_b, TensorView d_a_log, TensorView d_dt_bias);
};

struct DeltaNetRow {
  void (*forward)(Backend&, const DeltaNetArgs& args, TensorView out);
  void (*backward)(Backend&, const DeltaNetArgs& args, const DeltaGradients& grads);
};

struct ElementwiseRow {
  void (*copy)(Backend&, TensorView x, TensorView y);
  void (*fill_zero)(Backend&, TensorView y);
  void (*fill)(Backend&, TensorView y, float value);
  void (*round_to_bf16_in_place)(Backend&, TensorView x);
  void (*to_host)(Backend&, TensorView x, std::span<float> out);
  void (*from_host)(Backend&, std::span<const float> values, TensorView y);
  void (*indices_to_host)(Backend&, IndexView<int32_t> x, std::span<int32_t> out);
  void (*ends_to_host)(Backend&, IndexView<int64_t> x, std::span<int64_t> out);
  void (*indices_from_host)(Backend&, std::span<const int32_t> values, IndexView<int32_t> y);
  void (*ends_from_host)(Backend&, std::span<const int64_t> values, IndexView<int64_t> y);
  void (*copy_bytes)(Backend&, const void* from, void* to, int64_t bytes);
  void (*add_into)(Backend&, TensorView x, TensorView y);
  void (*scale)(Backend&, TensorView x, float factor, TensorView y);
  void (*scale_by)(Backend&, TensorView x, TensorView factor, TensorView y);
  void (*gather)(Backend&, TensorView x, IndexView<int32_t> rows, TensorView y);
  void (*gather_listed)(Backend&, TensorView x, std::span<const int32_t> rows, TensorView y);
  void (*gather_sum)(Backend&, TensorView x, IndexView<int32_t> rows, TensorView add, TensorView y);
  void (*gather_columns)(Backend&, TensorView x, std::span<const int32_t> columns, float factor,
                         TensorView y);
  void (*scatter_add_columns)(Backend&, TensorView x, std::span<const int32_t> columns,
                              TensorView y);
  void (*scatter_values)(Backend&, std::span<const int32_t> rows, std::span<const int32_t> columns,
                         std::span<const float> values, TensorView y);
  void (*scatter_add)(Backend&, TensorView x, std::span<const int32_t> rows, TensorView y);
  void (*add_rows_into)(Backend&, TensorView x, TensorView y);
  double (*sum_of_squares)(Backend&, TensorView x);
  double (*add_squares)(Backend&, TensorView x, double sum);
  double (*sum_of_squares_list)(Backend&, std::span<const TensorView> x);
};

struct GatedRow {
  void (*forward)(Backend&, Activation activation, TensorView gate, TensorView up, TensorView y);
  void (*backward)(Backend&, Activation activation, TensorView gate, TensorView up, TensorView d_y,
                   TensorView d_gate, TensorView d_up);
  void (*rows_forward)(Backend&, Activation activation, TensorView gate, TensorView up,
                       TensorView scales, TensorView y);
  void (*rows_backward)(Backend&, Activation activation, TensorView gate, TensorView up,
                        TensorView scales, TensorView d_y, TensorView d_gate, TensorView d_up,
                        TensorView d_scales);
};

struct GatedNormRow {
  void (*forward)(Backend&, const GatedNormArgs& args, TensorView y);
  void (*backward)(Backend&, const GatedNormArgs& args, TensorView d_y, TensorView d_x,
                   TensorView d_z, TensorView d_weight);
};

struct GemmRow {
  void (*list)(Backend&, std::span<const GemmArgs> products, std::span<const TensorView> y,
               int64_t most_rows);
  void (*runs)(Backend&, const TensorView& x, std::span<const SegmentProduct> runs,
               const TensorView& y);
  void (*dx_list)(Backend&, std::span<const GemmArgs> products, std::span<const TensorView> dx,
                  bool accumulate, int64_t most_rows);
  void (*dx_blocked)(Backend&, const GemmArgs& args, TensorView dx, bool accumulate,
                     const RunProducts& runs);
  void (*dx_each)(Backend&, std::span<const GemmArgs> products, std::span<const TensorView> dx);
  void (*dw)(Backend&, TensorView dy, TensorView x, std::span<const int64_t> sequence_ends,
             TensorView dw);
};

struct GemmGroupsRow {
  void (*divide)(Backend&, IndexView<int32_t> token_of_row, const GroupedRows& rows);
  void (*products)(Backend&, const GroupedArgs& args, TensorView y);
  void (*products_dx)(Backend&, const GroupedArgs& args, TensorView dx, bool accumulate);
  void (*runs)(Backend&, const GroupedRows& rows, TensorView x,
               std::span<const GroupedProduct> products, TensorView y);
  void (*runs_dx)(Backend&, const GroupedRows& rows, TensorView dy,
                  std::span<const GroupedProduct> products, TensorView dx, bool accumulate);
  void (*scale_runs)(Backend&, const GroupedRows& rows, TensorView x,
                     std::span<const GroupedProduct> products, TensorView y);
  void (*dw)(Backend&, const GroupedRows& rows, std::span<const GroupedGradient> gradients);
};

struct GroupBiasRow {
  void (*forward)(Backend&, const GroupedRows& rows, TensorStack bias, TensorView scales,
                  TensorView y);
  void (*backward)(Backend&, const GroupedRows& rows, const GroupBiasGradients& grads,
                   TensorView d_y);
};

struct HyperConnectionRow {
  void (*mix)(Backend&, TensorView streams, TensorView fn, float norm_eps, TensorView mix,
              TensorView inv_rms);
  void (*mix_backward)(Backend&, TensorView streams, TensorView fn, TensorView mix,
                       TensorView inv_rms, TensorView d_mix, TensorView d_streams, TensorView d_fn);
  void (*weights)(Backend&, const HyperWeightsArgs& args, TensorView weights);
  void (*weights_backward)(Backend&, const HyperWeightsArgs& args, TensorView d_weights,
                           TensorView d_mix, TensorView d_base, TensorView d_scale);
  void (*collapse)(Backend&, TensorView streams, TensorView weights, TensorView y);
  void (*collapse_backward)(Backend&, TensorView streams, TensorView weights, TensorView d_y,
                            TensorView d_streams, TensorView d_weights);
  void (*expand)(Backend&, TensorView streams, TensorView out, TensorView weights, TensorView y);
  void (*expand_backward)(Backend&, TensorView streams, TensorView out, TensorView weights,
                          TensorView d, TensorView d_out, TensorView d_weights);
};

struct IndexerRow {
  void (*select)(Backend&, const IndexerArgs& args, IndexView<int32_t> selected);
};

struct IndexerLossRow {
  void (*run)(Backend&, const IndexerLossArgs& args, std::span<float> losses,
              const IndexerGradients& gradients);
};

struct LimitsRow {
  double (*matrix_flops)(Backend&, DType dtype, double seconds);
  double (*read_bandwidth)(Backend&, const void* data, int64_t bytes);
};

struct LogSoftmaxRow {
  void (*map)(Backend&, const LogitMap& map, TensorView logits);
  void (*logsumexp)(Backend&, TensorView logits, TensorView lse);
  void (*target_logprobs)(Backend&, TensorView logits, TensorView lse,
                          std::span<const int32_t> rows, std::span<const int32_t> targets,
                          std::span<float> logprobs);
  void (*backward)(Backend&, TensorView logits, TensorView lse, std::span<const int32_t> targets,
                   std::span<const float> d_lp, TensorView d_logits, const LogitMap& map);
};

struct PackRow {
  int64_t (*panel_width)(const Backend&);
  void (*pack)(Backend&, const TensorView& rows, int64_t first_row, const PanelView& panel);
  void (*list)(Backend&, std::span<const PackItem> items);
  void (*narrow)(Backend&, const NarrowRows& rows, int64_t first_row, const PanelView& panel);
  void (*unpack)(Backend&, const PanelView& panel, int64_t first_row, const TensorView& rows);
  void (*gather_rows)(Backend&, const PanelView& panel, std::span<const int32_t> token_ids,
                      const TensorView& y);
};

// Not an op: what Backend::page_queue gives (backend/page_queue.h).
struct PagesRow {
  std::unique_ptr<PageQueue> (*queue)(const std::string& name, FileAllocator& files);
};

struct RmsNormRow {
  void (*forward)(Backend&, const RmsNormArgs& args, TensorView y, TensorView inv_rms);
  void (*backward)(Backend&, const RmsNormArgs& args, TensorView inv_rms, TensorView d_y,
                   TensorView d_x, TensorView d_weight);
};

struct RopeRow {
  void (*forward)(Backend&, const HeadNormRopeArgs& args, TensorView y);
  void (*backward)(Backend&, const HeadNormRopeArgs& args, TensorView d_y, TensorView d_x,
                   TensorView d_weight);
};

struct RowScaleRow {
  void (*forward)(Backend&, TensorView x, TensorView scales, TensorView y);
  void (*backward)(Backend&, TensorView x, TensorView scales, TensorView d_y, TensorView d_x,
                   TensorView d_scales);
};

struct RouterRow {
  void (*route)(Backend&, const RouterArgs& args, TensorView logits, IndexView<int32_t> expert_ids,
                TensorView weights);
  void (*route_to_given_experts)(Backend&, const RouterArgs& args, TensorView logits,
                                 IndexView<int32_t> expert_ids, TensorView weights);
  void (*look_up)(Backend&, TensorView table, std::span<const int32_t> tokens,
                  IndexView<int32_t> expert_ids);
  void (*sort)(Backend&, int64_t top_k, IndexView<int32_t> expert_ids, TensorView weights,
               const RouteRows& rows);
  void (*balance_bias)(Backend&, std::span<const int64_t> loads, double rate, TensorView bias);
  void (*backward)(Backend&, const RouterArgs& args, TensorView scores,
                   IndexView<int32_t> expert_ids, TensorView d_weights, TensorView d_logits);
};

struct SparseAttentionRow {
  void (*forward)(Backend&, const SparseAttentionArgs& args, TensorView out, TensorView lse);
  void (*backward)(Backend&, const SparseAttentionArgs& args, const SparseGradients& grads,
                   TensorView d_sinks);
};

// What becomes of lists in the host's memory (ops/stage.h): a copy that queued work may read, or
// the list itself where no work is queued.
struct StageRow {
  const void* (*list)(Backend&, const void* list, int64_t bytes);
};

struct TailRopeRow {
  void (*forward)(Backend&, const TailRopeArgs& args, TensorView y);
  void (*backward)(Backend&, const TailRopeArgs& args, TensorView d_y, TensorView d_x,
                   TensorView d_weight);
};

// In the order of the alphabet.
struct Rows {
  AdamWRow adamw;
  AttentionRow attention;
  CacheWriteRow cache_write;
  CausalConvRow causal_conv;
  ChooseTokensRow choose_tokens;
  ClampedSwigluRow clamped_swiglu;
  CompressorRow compressor;
  DeltaGatesRow delta_gates;
  DeltaNetRow delta_net;
  ElementwiseRow elementwise;
  GatedRow gated;
  GatedNormRow gated_norm;
  GemmRow gemm;
  GemmGroupsRow gemm_groups;
  GroupBiasRow group_bias;
  HyperConnectionRow hyper_connection;
  IndexerRow indexer;
  IndexerLossRow indexer_loss;
  LimitsRow limits;
  LogSoftmaxRow log_softmax;
  PackRow pack;
  PagesRow pages;
  RmsNormRow rms_norm;
  RopeRow rope;
  RouterRow router;
  RowScaleRow row_scale;
  SparseAttentionRow sparse_attention;
  StageRow stage;
  TailRopeRow tail_rope;
};

}  // namespace strata::ops
