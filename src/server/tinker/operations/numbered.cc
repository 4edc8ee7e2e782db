// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/operations/numbered.h"

#include "base/hash.h"

namespace strata::server {

Response handle_numbered_call(Service& service, const Request& request, const text::Fields& body,
                              const std::function<Response(const NumberedCall&)>& take) {
  const std::string id = body.string("model_id");
  const LiveModel& model = service.require_live_model(request, id);
  const int64_t seq_id = body.integer("seq_id", 1, INT64_MAX / 2);
  try {
    return take({request, body, id, model, seq_id});
  } catch (const Error&) {
    service.dispatch().consume({id}, seq_id);
    throw;
  }
}

api::Command new_training_command(Service& service, const NumberedCall& call) {
  api::Command command =
      service.new_training_command(call.request, call.model, call.model_id, call.seq_id);
  command.fingerprint = Hash::of(call.request.body);
  return command;
}

Response reject_seq_id(Service& service, const NumberedCall& call, std::string_view message,
                       api::FaultCategory category) {
  return service.reject_seq_id(call.request.tenant, call.model_id, call.seq_id,
                               Hash::of(call.request.body), message, category);
}

}  // namespace strata::server
