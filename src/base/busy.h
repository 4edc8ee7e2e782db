// SPDX-License-Identifier: Apache-2.0
// Busy: there is no space for this now: 429, to be sent again.
#pragma once
#include <string>

#include "base/error.h"

namespace strata {

struct Busy : Error {
  explicit Busy(const std::string& message) : Error(ErrorCode::kResourceExhausted, message) {}
};

}  // namespace strata
