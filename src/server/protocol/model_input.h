// SPDX-License-Identifier: Apache-2.0
// A ModelInput in JSON, {chunks: [{type, tokens}]}, as its token ids.
#pragma once
#include <cstdint>
#include <vector>

#include "server/protocol/json_body.h"

namespace strata::server {

// Throws Error for a token outside min to max, and for chunks that are not text.
std::vector<int32_t> read_model_input(const Fields& input, int32_t min, int32_t max);

}  // namespace strata::server
