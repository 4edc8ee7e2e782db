// SPDX-License-Identifier: Apache-2.0
// Conflict: a name, number or key that was used for something else: 409.
#pragma once
#include <string>

#include "base/error.h"

namespace strata {

struct Conflict : Error {
  explicit Conflict(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

}  // namespace strata
