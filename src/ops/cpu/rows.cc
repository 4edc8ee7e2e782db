// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/rows.h"

#include <memory>
#include <string>
#include <type_traits>

#include "backend/file_memory.h"
#include "ops/cpu/adamw.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/cache_write.h"
#include "ops/cpu/causal_conv.h"
#include "ops/cpu/choose_tokens.h"
#include "ops/cpu/clamped_swiglu.h"
#include "ops/cpu/compressor.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/delta_gates.h"
#include "ops/cpu/delta_net.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/gated.h"
#include "ops/cpu/gated_norm.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_groups.h"
#include "ops/cpu/group_bias.h"
#include "ops/cpu/hyper_connection.h"
#include "ops/cpu/indexer.h"
#include "ops/cpu/indexer_loss.h"
#include "ops/cpu/limits.h"
#include "ops/cpu/log_softmax.h"
#include "ops/cpu/narrow.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/rms_norm.h"
#include "ops/cpu/rope.h"
#include "ops/cpu/router.h"
#include "ops/cpu/row_scale.h"
#include "ops/cpu/sparse_attention.h"
#include "ops/cpu/tail_rope.h"
#include "ops/rows.h"

namespace strata::ops::cpu {
namespace {

// A function of the CPU's backend as one of backends: its rows are called with such a one alone.
template <auto kFunction>
struct OnCpu;
template <typename R, typename B, typename... Args, R (*kFunction)(B&, Args...)>
struct OnCpu<kFunction> {
  using Any = std::conditional_t<std::is_const_v<B>, const Backend, Backend>;
  static R call(Any& backend, Args... args) {
    return kFunction(static_cast<B&>(backend), static_cast<Args&&>(args)...);
  }
};
template <auto kFunction>
constexpr auto on_cpu = OnCpu<kFunction>::call;

std::unique_ptr<PageQueue> page_mover(const std::string& name, FileAllocator& files) {
  return std::make_unique<PageMover>(name, files);
}

// Work is done before its op returns.
const void* list_itself(Backend&, const void* list, int64_t) { return list; }

}  // namespace

constexpr Rows kRows = {
    .adamw = {.run = on_cpu<adamw>, .list = on_cpu<adamw_fused>},
    .attention = {.forward = on_cpu<attention>, .backward = on_cpu<attention_backward>},
    .cache_write = {.run = on_cpu<cache_write>},
    .causal_conv = {.forward = on_cpu<causal_conv>, .backward = on_cpu<causal_conv_backward>},
    .choose_tokens = {.choose = on_cpu<choose_tokens>,
                      .draw = on_cpu<draw_tokens>,
                      .topk = on_cpu<compute_topk_logprobs>},
    .clamped_swiglu = {.forward = on_cpu<clamped_swiglu>,
                       .backward = on_cpu<clamped_swiglu_backward>},
    .compressor = {.forward = on_cpu<compress>, .backward = on_cpu<compress_backward>},
    .delta_gates = {.forward = on_cpu<delta_gates>, .backward = on_cpu<delta_gates_backward>},
    .delta_net = {.forward = on_cpu<delta_net>, .backward = on_cpu<delta_net_backward>},
    .elementwise = {.copy = on_cpu<copy>,
                    .fill_zero = on_cpu<fill_zero>,
                    .fill = on_cpu<fill>,
                    .round_to_bf16_in_place = on_cpu<round_to_bf16_in_place>,
                    .to_host = on_cpu<to_host>,
                    .from_host = on_cpu<from_host>,
                    .indices_to_host = on_cpu<indices_to_host>,
                    .ends_to_host = on_cpu<ends_to_host>,
                    .indices_from_host = on_cpu<indices_from_host>,
                    .ends_from_host = on_cpu<ends_from_host>,
                    .copy_bytes = on_cpu<copy_bytes>,
                    .add_into = on_cpu<add_into>,
                    .scale = on_cpu<scale>,
                    .scale_by = on_cpu<scale_by>,
                    .gather = on_cpu<gather>,
                    .gather_listed = on_cpu<gather_listed>,
                    .gather_sum = on_cpu<gather_sum>,
                    .gather_columns = on_cpu<gather_columns>,
                    .scatter_add_columns = on_cpu<scatter_add_columns>,
                    .scatter_values = on_cpu<scatter_values>,
                    .scatter_add = on_cpu<scatter_add>,
                    .add_rows_into = on_cpu<add_rows_into>,
                    .sum_of_squares = on_cpu<sum_of_squares>,
                    .add_squares = on_cpu<add_squares>,
                    .sum_of_squares_list = on_cpu<sum_of_squares_list>},
    .gated = {.forward = on_cpu<act_and_mul>,
              .backward = on_cpu<act_and_mul_backward>,
              .rows_forward = on_cpu<scaled_act_and_mul>,
              .rows_backward = on_cpu<scaled_act_and_mul_backward>},
    .gated_norm = {.forward = on_cpu<gated_norm>, .backward = on_cpu<gated_norm_backward>},
    .gemm = {.list = on_cpu<gemm>,
             .runs = on_cpu<gemm_runs>,
             .dx_list = on_cpu<gemm_dx_list>,
             .dx_blocked = on_cpu<gemm_dx_blocked_with_runs>,
             .dx_each = on_cpu<gemm_dx_each>,
             .dw = on_cpu<gemm_dw>},
    .gemm_groups = {.divide = on_cpu<split_groups_by_sequence>,
                    .products = on_cpu<gemm_groups>,
                    .products_dx = on_cpu<gemm_groups_dx>,
                    .runs = on_cpu<gemm_group_runs>,
                    .runs_dx = on_cpu<gemm_group_runs_dx>,
                    .scale_runs = on_cpu<scale_group_runs>,
                    .dw = on_cpu<gemm_dw_groups>},
    .group_bias = {.forward = on_cpu<add_group_bias>, .backward = on_cpu<group_bias_backward>},
    .hyper_connection = {.mix = on_cpu<hyper_mix>,
                         .mix_backward = on_cpu<hyper_mix_backward>,
                         .weights = on_cpu<hyper_weights>,
                         .weights_backward = on_cpu<hyper_weights_backward>,
                         .collapse = on_cpu<hyper_collapse>,
                         .collapse_backward = on_cpu<hyper_collapse_backward>,
                         .expand = on_cpu<hyper_expand>,
                         .expand_backward = on_cpu<hyper_expand_backward>},
    .indexer = {.select = on_cpu<select_entries>},
    .indexer_loss = {.run = on_cpu<indexer_loss>},
    .limits = {.matrix_flops = on_cpu<measure_matrix_flops>,
               .read_bandwidth = on_cpu<measure_read_bandwidth>},
    .log_softmax = {.map = on_cpu<map_logits>,
                    .logsumexp = on_cpu<logsumexp>,
                    .target_logprobs = on_cpu<compute_target_logprobs>,
                    .backward = on_cpu<log_softmax_backward>},
    .pack = {.panel_width = on_cpu<panel_width>,
             .pack = on_cpu<pack>,
             .list = on_cpu<pack_list>,
             .narrow = on_cpu<pack_narrow_rows>,
             .unpack = on_cpu<unpack>,
             .gather_rows = on_cpu<gather_rows>},
    .pages = {.queue = page_mover},
    .rms_norm = {.forward = on_cpu<rms_norm>, .backward = on_cpu<rms_norm_backward>},
    .rope = {.forward = on_cpu<head_norm_rope>, .backward = on_cpu<head_norm_rope_backward>},
    .router = {.route = on_cpu<route>,
               .route_to_given_experts = on_cpu<route_to_given_experts>,
               .look_up = on_cpu<look_up_experts>,
               .sort = on_cpu<sort_routes>,
               .balance_bias = on_cpu<balance_bias>,
               .backward = on_cpu<route_backward>},
    .row_scale = {.forward = on_cpu<scale_rows>, .backward = on_cpu<scale_rows_backward>},
    .sparse_attention = {.forward = on_cpu<sparse_attention>,
                         .backward = on_cpu<sparse_attention_backward>},
    .stage = {.list = list_itself},
    .tail_rope = {.forward = on_cpu<tail_rope>, .backward = on_cpu<tail_rope_backward>},
};

}  // namespace strata::ops::cpu
