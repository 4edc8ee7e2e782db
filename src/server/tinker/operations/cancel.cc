// SPDX-License-Identifier: Apache-2.0
// POST cancel_future: {request_id}: a sample of one's own leaves at once, with its rows and pages.
// POST requests/{}/cancel: anybody's, for a key of the operator's. What trains was accepted with a
// number that others wait for, and runs.
#include <fmt/format.h>

#include <memory>
#include <string_view>

#include "server/tinker/operations/operations.h"
#include "server/tinker/service/futures.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

Response no_content_response() {
  Response response;
  response.status = 204;
  return response;
}

Response cancel_pending(Service& service, const Request& request, const PendingCommand& pending,
                        std::string_view why) {
  const std::string& id = pending.request.text;
  request.note(id);
  if (!pending.is_sample) {
    return error_response(400, fmt::format("request {} is no sample: what trains, saves or loads "
                                           "was accepted and runs; end its session, or unload its "
                                           "model",
                                           id));
  }
  service.cancel(pending.request, fmt::format("request {} {}", id, why));
  return no_content_response();
}

// Where it has ended there is nothing to cancel, and its result stays.
Response cancel_future(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "cancel_future");
  const std::string id = json.root().string("request_id");
  const std::shared_ptr<PendingCommand> pending = service.futures().find_pending({id});
  if (pending != nullptr && pending->tenant == request.tenant)
    return cancel_pending(service, request, *pending, "was cancelled by its client");
  if (service.futures().was_made(request.tenant, id)) return no_content_response();
  return error_response(404, fmt::format("no such request: {}", id.substr(0, 100)));
}

// Anybody's, for a key of the operator's.
Response cancel_request(Service& service, const Request& request) {
  const std::string& id = request.parts.at(0);
  const std::shared_ptr<PendingCommand> pending = service.futures().find_pending({id});
  if (pending != nullptr)
    return cancel_pending(service, request, *pending, "was cancelled by the operator");
  return error_response(404, fmt::format("no such request runs: {}", id.substr(0, 100)));
}

}  // namespace

constinit const Operation kCancelFuture = {.path = "cancel_future",
                                           .run = cancel_future,
                                           .scope = Scope::kSample,
                                           .size = BodySize::kTiny};

constinit const Operation kCancelRequest = {.path = "requests/{}/cancel",
                                            .run = cancel_request,
                                            .size = BodySize::kTiny,
                                            .needs_admin = true};

}  // namespace strata::server
