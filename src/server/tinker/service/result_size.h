// SPDX-License-Identifier: Apache-2.0
// What the results of commands take at most, known before they are run, so that space for them is
// held from their acceptance on.
#pragma once
#include <cstdint>

#include "api/command.h"

namespace strata::server {

// What a future takes besides its answer's body.
inline constexpr int64_t kFutureBytes = 512;

// Bytes that the answer to a command may take, as it is kept until it is fetched, with its future.
int64_t most_result_bytes(const api::Command& command);
// Those that are there from a sample's beginning: its tables over the prompt.
int64_t prompt_table_bytes(const api::Sample& sample);
// Bytes that what is sampled may take, of all of its num_samples.
int64_t most_sampled_bytes(const api::Sample& sample);

}  // namespace strata::server
