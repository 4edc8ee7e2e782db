// SPDX-License-Identifier: Apache-2.0
// The backend that commands run on.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "tensor/dtype.h"

namespace strata::apps {

// No threads: all cores that this process may use. Error{kInvalidArgument, kUnsupported} where
// STRATA_CPU_PATH names no path that this machine can run.
std::unique_ptr<Backend> make_backend(int threads);
// Its arithmetic, and that for people: "amx by tiles".
std::string_view arithmetic_in_use();
std::string describe_arithmetic_in_use();
// Empty, or which path multiplies numbers of this type over a tenth faster here than the one in
// use, and how to take it. Measures for a tenth of a second each.
std::string find_faster_arithmetic(DType dtype, int threads);

}  // namespace strata::apps
