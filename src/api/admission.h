// SPDX-License-Identifier: Apache-2.0
// Admission: whether a submitted command was taken, and if not, why.
#pragma once
#include <cstdint>

namespace strata::api {

enum class Admission : uint8_t {
  kAccepted,
  kGivenUp,       // this number waits already, was refused, given up, or has run before
  kUnknownModel,  // never created, unloaded, or its creation failed
  kFull,          // 429: the sample queue, the bytes of what is queued, the model's operations
  kTooLarge,      // no queue has space for a command of so many bytes
  kStopping,      // 503
};

}  // namespace strata::api
