// SPDX-License-Identifier: Apache-2.0
#include "server/protocol/model_input.h"

#include <fmt/format.h>

#include <string>

namespace strata::server {

std::vector<int32_t> read_model_input(const Fields& input, int32_t min, int32_t max) {
  std::vector<int32_t> tokens;
  input.each_object("chunks", [&](const Fields& chunk) {
    const std::string type = chunk.string_or("type", "encoded_text");
    if (type != "encoded_text") {
      chunk.fail("type", fmt::format("'{}' chunks are not supported: the model reads text only",
                                     type.substr(0, 100)));
    }
    for (const int64_t id : chunk.integers("tokens")) {
      if (id < min || id > max) {
        chunk.fail("tokens", fmt::format("token {} is outside {} to {}", id, min, max));
      }
      tokens.push_back(static_cast<int32_t>(id));
    }
  });
  return tokens;
}

}  // namespace strata::server
