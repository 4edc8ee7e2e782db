// SPDX-License-Identifier: Apache-2.0
// Clamped SwiGLU: y = scale * g sigmoid(alpha g) * (u + offset), g = min(gate, limit), u =
// clamp(up, -limit, limit). DeepSeek-V4's experts have alpha 1 and no offset (HF
// modeling_deepseek_v4.py, DeepseekV4MLP and DeepseekV4Experts), gpt-oss' 1.702 and 1
// (modeling_gpt_oss.py, GptOssExperts). A clamped input has no gradient; one that is exactly at the
// limit has, as in torch. T tokens, F feed-forward width. Arithmetic in fp32, results rounded once;
// the errors are those of ops/gated.h's kSilu, and with an alpha that of its product with g. Engine
// thread only; outputs may alias inputs.
#pragma once
#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

struct SwigluForm {
  float limit = 0.0f;      // more than 0
  float alpha = 1.0f;      // of the sigmoid's argument
  float up_offset = 0.0f;  // added to the clamped up
  friend bool operator==(const SwigluForm&, const SwigluForm&) = default;
};

// gate, up, y: [T, F], one type, f32 or bf16; rows may have gaps. scales [T] f32: a factor for each
// row, before the rounding; empty: ones.
void clamped_swiglu(Backend& backend, const SwigluForm& form, TensorView gate, TensorView up,
                    TensorView scales, TensorView y);

// Writes d_gate and d_up [T, F] (the type of gate) from d_y [T, F] f32 or bf16, and with scales
// d_scales [T] f32, the sum of d_y y / scale over a row: sixteen interleaved partial sums,
// then their tree. d_scales is empty where scales are.
void clamped_swiglu_backward(Backend& backend, const SwigluForm& form, TensorView gate,
                             TensorView up, TensorView scales, TensorView d_y, TensorView d_gate,
                             TensorView d_up, TensorView d_scales);

}  // namespace strata::ops
