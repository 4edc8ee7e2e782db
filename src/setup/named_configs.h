// SPDX-License-Identifier: Apache-2.0
// Shapes of published models by name: `strata init --config NAME`, `plan NAME`, whatever needs no
// weights. Any thread.
#pragma once
#include <span>
#include <string_view>

namespace strata::apps {

struct NamedConfig {
  std::string_view name;
  std::string_view json;  // what the model's own config.json says of its shape
};

std::span<const NamedConfig> named_configs();

}  // namespace strata::apps
