// SPDX-License-Identifier: Apache-2.0
// A probe request from anyone: an Error or a request whose lists agree in length, never a crash.
#include <cstdint>
#include <string_view>

#include "apps/probe/probe_request.h"
#include "base/check.h"
#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto request = strata::apps::parse_probe_request(
        {reinterpret_cast<const char*>(data), size}, "request", 2);
    for (const auto& sequence : request.sequences) {
      const strata::api::Datum& datum = *sequence.datum;
      CHECK(!datum.tokens.empty());
      CHECK(datum.targets.empty() || datum.targets.size() == datum.tokens.size());
      CHECK(static_cast<int>(sequence.slot) >= 0 && static_cast<int>(sequence.slot) <= 2);
    }
  } catch (const strata::Error&) {
  }
  return 0;
}
