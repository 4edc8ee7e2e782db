// Results of the engine as the bytes that a poll gets.
#pragma once
#include <string>

#include "api/result.h"
#include "server/http/message.h"

namespace strata::server {

Response forward_backward_response(const api::ForwardBackwardResult& result);
// `num_prompt_target_columns`: K of target_prompt_logprobs [P - 1, K], 0 when nothing was asked.
Response sample_response(const api::SampleOutput& output);
// {"metrics": {...}}: finite values alone.
Response optim_response(const api::StepResult& result);

}  // namespace strata::server
