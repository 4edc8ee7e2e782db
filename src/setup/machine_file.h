// SPDX-License-Identifier: Apache-2.0
// A file that says what a machine can do, so that plans made at different times, or for another
// machine, can be compared: {"bf16_flops": F, "f32_flops": F, "read_bytes_per_s": B,
// "file_bytes_per_s": B}, all positive numbers.
#pragma once
#include <string>

#include "planner/limits.h"

namespace strata::apps {

// Limits for planning: the file's, or probed now where `file` is empty. `save`: a file to write the
// probed ones to, or empty.
engine::MachineLimits resolve_machine_limits(Backend& backend, DType dtype, int64_t most_bytes,
                                             const std::string& file, const std::string& save);

// Throws Error that names file and field.
engine::MachineLimits read_machine_file(const std::string& path, DType dtype);

}  // namespace strata::apps
