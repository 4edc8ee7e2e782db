// SPDX-License-Identifier: Apache-2.0
// The bytes of a command: what is read is written as the same bytes again.
#include <cstdint>
#include <string_view>

#include "api/command_bytes.h"
#include "base/check.h"
#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    CHECK(strata::api::to_bytes(strata::api::command_from_bytes(bytes)) == bytes, size);
  } catch (const strata::Error&) {
  }
  return 0;
}
