// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_options.h"

#include "base/check.h"

namespace strata::engine {

EngineOptions checked(const EngineOptions& options) {
  CHECK(options.page_size >= 1 && options.pass_tokens >= 1 && options.prefill_tokens >= 1,
        options.page_size, options.pass_tokens, options.prefill_tokens);
  return options;
}

}  // namespace strata::engine
