// SPDX-License-Identifier: Apache-2.0
// Error: a fault that a user, a file or the world can cause. Caught only at request execution,
// checkpoint jobs and main. The message says where, what, got, wanted and the likely cause.
#pragma once
#include <stdexcept>
#include <string>

namespace strata {

enum class ErrorCode {
  kInvalidArgument,  // a request, an option or a file's content is wrong
  kNotFound,         // a named thing does not exist
  kUnsupported,      // well-formed, and not something this build does
  kResourceExhausted,
  kIo,  // the operating system refused: disk full, permission, short read
};

struct Error : std::runtime_error {
  Error(ErrorCode error_code, const std::string& message)
      : std::runtime_error(message), code(error_code) {}
  ErrorCode code;
};

// A loss or the norm of a gradient is infinite or not a number.
struct NotFinite : Error {
  explicit NotFinite(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

}  // namespace strata
