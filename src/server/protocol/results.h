// Results of the engine as the bytes that a poll gets.
#pragma once
#include <string>

#include "api/result.h"
#include "server/http/message.h"
#include "server/protocol/tensor.h"

namespace strata::server {

Response forward_backward_response(const api::ForwardBackwardResult& result);
// The same as JSON, from the bytes of its message: {loss_fn_output_type, loss_fn_outputs:
// [{logprobs: {data, dtype, shape}}], metrics}. Numbers keep their bits; what is not finite is
// null, of metrics left out.
Response forward_backward_json(const std::string& message);
// `targets`: the layout of target_prompt_logprobs.
Response sample_response(const api::SampleOutput& output, const TensorParts& targets);
// {"metrics": {...}}: finite values alone.
Response optim_response(const api::StepResult& result);

}  // namespace strata::server
