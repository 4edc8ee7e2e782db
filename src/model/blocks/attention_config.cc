// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/attention_config.h"

#include <fmt/format.h>

#include <cmath>

namespace strata::model {

float plain_attention_scale(int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

std::string rope_dim_fault(std::string_view key, int64_t dim, std::string_view hint) {
  if (dim >= 2 && dim % 2 == 0 && dim <= 1024) return {};
  return fmt::format("{} {} must be even, from 2 to 1024{}", key, dim, hint);
}

}  // namespace strata::model
