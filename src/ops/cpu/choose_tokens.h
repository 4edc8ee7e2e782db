// SPDX-License-Identifier: Apache-2.0
// The CPU behind ops/choose_tokens.h: arguments are checked.
#pragma once
#include <cstdint>
#include <span>

#include "tensor/view.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops {
struct SamplingParams;
struct TokenChoice;
}  // namespace strata::ops

namespace strata::ops::cpu {

void choose_tokens(CpuBackend& backend, TensorView logits, TensorView lse,
                   std::span<TokenChoice* const> choices);
void draw_tokens(CpuBackend& backend, TensorView logits, TensorView lse, int64_t row,
                 const SamplingParams& params, uint64_t first_draw, std::span<int32_t> ids,
                 std::span<float> logprobs);
void compute_topk_logprobs(CpuBackend& backend, TensorView logits, TensorView lse, int64_t row,
                           std::span<int32_t> ids, std::span<float> logprobs);

}  // namespace strata::ops::cpu
