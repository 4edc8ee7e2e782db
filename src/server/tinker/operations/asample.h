// SPDX-License-Identifier: Apache-2.0
// POST asample: {sampling_session_id, seq_id, prompt, num_samples, sampling_params, ...}
// in JSON: continuations of a prompt, and with prompt_logprobs what the
// prompt's own tokens were worth, which is all that compute_logprobs of the SDK is. Its number is
// the client's: sent again, it is answered as it was. An extension, which the SDK does not know:
// structured_outputs, which every continuation has to fit, as vLLM has it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "api/command.h"
#include "api/work.h"
#include "server/tinker/protocol/tensor.h"
#include "text/json_body.h"

namespace strata::server {

// The body of asample as a command, in two steps: what it says, within the limits of the protocol;
// then, where the base model is known that its sampling session is of, what that allows and what it
// has by default. Faults are Errors (400).
struct SampleOrder {
  api::Sample command;       // without a snapshot; max_tokens 0: as many as the context has
  bool record = false;       // record_stability_info
  bool stops_at_end = true;  // the base model's end tokens stop it too
  std::optional<TensorParts> targets =
      {};                    // the layout of target_prompt_logprobs, where it was asked
  std::string outputs = {};  // JSON of structured_outputs; empty: answers are free
};

// Any thread. `fallback_seed` serves a request without a seed.
SampleOrder read_sample(const text::Fields& body, uint64_t fallback_seed);

// Fills what the model has by default, and checks the rest against it: a glance at each id.
void resolve_sample(const api::BaseInfo& base, SampleOrder& order);

}  // namespace strata::server
