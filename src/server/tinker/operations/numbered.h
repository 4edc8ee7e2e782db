// SPDX-License-Identifier: Apache-2.0
// What changes a model in the order of its numbers. A refusal at submission uses its number up,
// since what has the next ones waits for it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "server/tinker/service/service.h"
#include "text/json_body.h"

namespace strata::server {

// A body of {model_id, seq_id, ...}, of a model that is alive; until the handler returns.
struct NumberedCall {
  const Request& request;
  const text::Fields body;
  const std::string model_id;
  const LiveModel& model;
  const int64_t seq_id;
};

// Reads such a body; what `take` throws is the response, and uses the number up.
Response handle_numbered_call(Service& service, const Request& request, const text::Fields& body,
                              const std::function<Response(const NumberedCall&)>& take);

// Its command, without what it does, with the body's fingerprint.
api::Command new_training_command(Service& service, const NumberedCall& call);

// The call has failed already, for a fault of what it names.
Response reject_seq_id(Service& service, const NumberedCall& call, std::string_view message,
                       api::FaultCategory category = api::FaultCategory::kUser);

}  // namespace strata::server
