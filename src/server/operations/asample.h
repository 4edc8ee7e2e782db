// SPDX-License-Identifier: Apache-2.0
// POST asample: {sampling_session_id, seq_id, prompt, num_samples, sampling_params, ...}
// (protocol/sample_request.h): continuations of a prompt, and with prompt_logprobs what the
// prompt's own tokens were worth, which is all that compute_logprobs of the SDK is. Its number is
// the client's: sent again, it is answered as it was.
#pragma once
#include "server/operations/operation.h"

namespace strata::server {

extern const Operation kAsample;

}  // namespace strata::server
