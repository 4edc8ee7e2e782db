// SPDX-License-Identifier: Apache-2.0
// strata inspect: what a checkpoint directory holds and what is wrong with it, without loading its
// weights: family, shapes, sizes, missing and unused tensors, tokenizer, chat template.
#pragma once
#include <string>
#include <vector>

#include "base/function_ref.h"

namespace strata::apps {

struct InspectOptions {
  std::string model;
  bool tensors = false;  // list every tensor
  bool json = false;
  bool strict_config = false;
};

// Runs one look at a file; its Error is a fault among others. Several looks may meet the same one,
// which is kept once.
void collect_fault(std::vector<std::string>& faults, FunctionRef<void()> body);

// 0, or 2 when the directory has faults; they are printed.
int run_inspect(const InspectOptions& options);

}  // namespace strata::apps
