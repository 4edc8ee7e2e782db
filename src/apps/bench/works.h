// SPDX-License-Identifier: Apache-2.0
// The works of `strata bench`: what is run, and how much of it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "apps/bench/shapes.h"

namespace strata::apps {

enum class WorkKind { kTrain, kPrefill, kDecode };

struct BenchWork {
  std::string_view name;
  WorkKind kind;
  int64_t batch;   // sequences
  int64_t length;  // tokens of each; the prompt of a decode
  bool recompute = false;
  bool adapters = false;  // decode: each sequence with its own
  BenchShape shape = BenchShape::kQwen3Dense;
};

// Throws Error, which lists them, where none has the name.
const BenchWork& find_bench_work(std::string_view name);

// Their names, for --help.
std::string bench_work_names();

}  // namespace strata::apps
