// SPDX-License-Identifier: Apache-2.0
// What an answer's samples have given, as it counts among results and in the time that telling it
// takes.
#pragma once
#include <cstdint>
#include <vector>

#include "api/result.h"

namespace strata::server {

struct OutputSize {
  int64_t tokens = 0;  // of prompts that are told, and of answers
  int64_t told = 0;    // with the most likely ones of each
  int64_t bytes = 0;
};

OutputSize size_of(const api::SampleOutput& output);
OutputSize total_size_of(const std::vector<api::SampleOutput>& outputs);

}  // namespace strata::server
