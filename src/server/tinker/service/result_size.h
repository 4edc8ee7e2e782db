// SPDX-License-Identifier: Apache-2.0
// What the results of commands take at most, known before they are run, so that space for them is
// held from their acceptance on.
#pragma once
#include <cstdint>

#include "api/command.h"

namespace strata::server {

// What a future takes besides its answer's body.
inline constexpr int64_t kFutureBytes = 512;

// Bytes that are held for the answer to a command, with its future. Of a sample all that it may
// take. Of a pass its future's alone: passes wait for each other, so what waits must not keep out
// what it waits for, and while it waits its data take more in the queue than its result will.
int64_t most_result_bytes(const api::Command& command);
// Those that are there from a sample's beginning: its tables over the prompt.
int64_t prompt_table_bytes(const api::Sample& sample);
// Bytes that what is sampled may take, of all of its num_samples.
int64_t most_sampled_bytes(const api::Sample& sample);

}  // namespace strata::server
