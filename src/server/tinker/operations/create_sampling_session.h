// SPDX-License-Identifier: Apache-2.0
// POST create_sampling_session: {session_id, sampling_session_seq_id} and {model_path} or
// {base_model}: a name for weights to sample from. Its number is the client's: sent again, it is
// the same.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kCreateSamplingSession;

}  // namespace strata::server
