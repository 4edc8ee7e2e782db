// SPDX-License-Identifier: Apache-2.0
// Texts of requests in messages of faults, which end at a NUL.
#pragma once
#include <cstddef>
#include <string>

namespace strata::text {

// Each NUL as \0, so that what() has all of it.
inline std::string escape_nuls(std::string text) {
  for (size_t at = text.find('\0'); at != std::string::npos; at = text.find('\0', at)) {
    text.replace(at, 1, "\\0");
  }
  return text;
}

}  // namespace strata::text
