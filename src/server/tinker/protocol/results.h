// SPDX-License-Identifier: Apache-2.0
// Results of the engine as what a poll gets.
#pragma once
#include <string>

#include "api/result.h"
#include "server/http/message.h"
#include "server/tinker/protocol/tensor.h"

namespace strata::server {

Response forward_backward_response(const api::ForwardBackwardResult& result);
// As JSON: {loss_fn_output_type, loss_fn_outputs: [{logprobs: {data, dtype, shape}}], metrics}.
// Numbers keep their bits; what is not finite is null, of metrics left out.
Response forward_backward_json_response(const api::ForwardBackwardResult& result);
// The result of a request that came as JSON: in JSON or protobuf, as the poll accepts it.
Response negotiated_forward_backward_response(const api::ForwardBackwardResult& result);
// `targets`: the layout of target_prompt_logprobs, where that was asked.
Response sample_response(const api::SampleOutput& output,
                         const std::optional<TensorParts>& targets);
// {"metrics": {...}}: finite values alone.
Response optim_response(const api::StepResult& result);

}  // namespace strata::server
