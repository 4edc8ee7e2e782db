// SPDX-License-Identifier: Apache-2.0
// The program's exit codes: 0 done, 2 a fault of the request, an option or a file, 1 anything else.
#pragma once
#include "base/error.h"

namespace strata::apps {

inline int exit_code(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnsupported:
      return 2;
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kIo:
      return 1;
  }
  return 1;
}

}  // namespace strata::apps
