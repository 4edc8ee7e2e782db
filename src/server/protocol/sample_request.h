// SPDX-License-Identifier: Apache-2.0
// The body of asample as a command, checked against the limits of the protocol and of the base
// model. Faults are Errors (400).
#pragma once
#include "api/command.h"
#include "api/work.h"
#include "server/protocol/json_body.h"
#include "server/protocol/tensor.h"

namespace strata::server {

struct SampleOrder {
  api::Sample command;  // without a snapshot
  bool record = false;  // record_stability_info
  TensorParts targets;  // the layout of target_prompt_logprobs, where it was asked
};

// `fallback_seed` serves a request without a seed.
SampleOrder read_sample(const Fields& body, const api::BaseInfo& base, uint64_t fallback_seed);

}  // namespace strata::server
