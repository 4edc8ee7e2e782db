// SPDX-License-Identifier: Apache-2.0
// The CPU behind ops/router.h: arguments are checked. One driver for every path, in plain doubles.
#pragma once
#include "ops/router.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

void route(CpuBackend& backend, const RouterArgs& args, TensorView logits,
           IndexView<int32_t> expert_ids, TensorView weights);
void route_to_given_experts(CpuBackend& backend, const RouterArgs& args, TensorView logits,
                            IndexView<int32_t> expert_ids, TensorView weights);
void look_up_experts(CpuBackend& backend, TensorView table, std::span<const int32_t> tokens,
                     IndexView<int32_t> expert_ids);
void sort_routes(CpuBackend& backend, int64_t top_k, IndexView<int32_t> expert_ids,
                 TensorView weights, const RouteRows& rows);
void balance_bias(CpuBackend& backend, std::span<const int64_t> loads, double rate,
                  TensorView bias);
void route_backward(CpuBackend& backend, const RouterArgs& args, TensorView scores,
                    IndexView<int32_t> expert_ids, TensorView d_weights, TensorView d_logits);

}  // namespace strata::ops::cpu
