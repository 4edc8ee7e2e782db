// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/stop_text.h"

namespace strata::engine {

bool StopText::push(int32_t token, bool last) {
  std::string piece = detokenizer_.push(token);
  if (last) piece += detokenizer_.flush();
  return finder_.detect_stop(piece);
}

}  // namespace strata::engine
