// SPDX-License-Identifier: Apache-2.0
// In the place of engine/engine_options.cc: the least of what nobody chose. Pages of one position
// (or as few as the layers allow), one sequence a pass.
#include "engine/engine_options.h"

namespace strata::engine {

EngineOptions checked(const EngineOptions& options) {
  const EngineOptions usual;
  EngineOptions hostile = options;
  if (options.page_size == usual.page_size) hostile.page_size = 1;
  if (options.pass_tokens == usual.pass_tokens) hostile.pass_tokens = 1;
  return hostile;
}

}  // namespace strata::engine
