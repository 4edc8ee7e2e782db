// SPDX-License-Identifier: Apache-2.0
// config.json from anyone: an Error or a config, never a crash; a config that is accepted has
// finite rotary frequencies.
#include <cmath>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const auto parsed = strata::model::parse_config(text, "config.json", false);
    for (const strata::model::RopeSpec& rope : parsed.config.ropes) {
      for (const double f : strata::model::rope_frequencies(rope.config, rope.dim)) {
        CHECK(std::isfinite(f), f);
      }
    }
    for (const auto& layer : parsed.config.layers) {
      for (const auto& sublayer : layer) {
        CHECK(sublayer.block.ops().fault(sublayer.block.config()).empty());
      }
    }
  } catch (const strata::Error&) {
  }
  return 0;
}
