// SPDX-License-Identifier: Apache-2.0
// What the configs of all attentions share.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace strata::model {

// 1 / sqrt(head_dim)
float plain_attention_scale(int64_t head_dim);
// What makes a rotary width unusable, as a sentence that names the key; empty when nothing does.
std::string rope_dim_fault(std::string_view key, int64_t dim, std::string_view hint = {});

}  // namespace strata::model
