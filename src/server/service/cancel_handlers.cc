// SPDX-License-Identifier: Apache-2.0
// Cancelling: of samples alone, by their client or by an operator. What trains was accepted with a
// number that others wait for, and runs.
#include <fmt/format.h>

#include "server/service/service.h"

namespace strata::server {
namespace {

Response nothing_more() {
  Response response;
  response.status = 204;
  return response;
}

}  // namespace

// Of one that has ended there is nothing to cancel, and its result stays.
Response Service::cancel_future(const Request& request) {
  const JsonBody json(request.body, "cancel_future");
  const std::string id = json.root().string("request_id");
  const std::shared_ptr<PendingCommand> pending = futures_.find_pending({id});
  if (pending != nullptr && pending->tenant == request.tenant)
    return cancel_pending(request, *pending, "was cancelled by its client");
  if (futures_.was_made(request.tenant, id)) return nothing_more();
  return error_response(404, fmt::format("no such request: {}", id.substr(0, 100)));
}

// Anybody's, for a key of the operator's.
Response Service::cancel_request(const Request& request) {
  const std::string& id = request.parts.at(0);
  if (!request.is_admin) return error_response(403, "this takes an admin key (--admin-keys)");
  const std::shared_ptr<PendingCommand> pending = futures_.find_pending({id});
  if (pending != nullptr) return cancel_pending(request, *pending, "was cancelled by the operator");
  return error_response(404, fmt::format("no such request runs: {}", id.substr(0, 100)));
}

Response Service::cancel_pending(const Request& request, const PendingCommand& pending,
                                 std::string_view why) {
  const std::string& id = pending.request.text;
  request.note(id);
  if (!pending.is_sample) {
    return error_response(400, fmt::format("request {} is no sample: what trains, saves or loads "
                                           "was accepted and runs; end its session, or unload its "
                                           "model",
                                           id));
  }
  cancel(pending.request, fmt::format("request {} {}", id, why));
  return nothing_more();
}

}  // namespace strata::server
