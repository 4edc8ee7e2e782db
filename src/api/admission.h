// SPDX-License-Identifier: Apache-2.0
// Admission: whether a submitted command was taken, and if not, why.
#pragma once
#include <cstdint>

#include "api/ids.h"

namespace strata::api {

enum class Admission : uint8_t {
  kAccepted,
  kDuplicate,     // Admitted::request is the one to poll
  kConflict,      // this number was used for something else
  kGivenUp,       // this number was refused, given up, or has run before
  kUnknownModel,  // never created, unloaded, or its creation failed
  kFull,          // 429: the sample queue, the bytes of what is queued, the model's operations
  kTooLarge,      // no queue has space for a command of so many bytes
  kStopping,      // 503
};

struct Admitted {
  Admission admission = Admission::kAccepted;
  RequestId request = {};  // of the first submission for kDuplicate, else the command's own
};

}  // namespace strata::api
