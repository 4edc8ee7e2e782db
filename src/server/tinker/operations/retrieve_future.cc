// SPDX-License-Identifier: Apache-2.0
// POST retrieve_future: {request_id}: what became of a request, at once or when it is known; 408
// when that takes longer than a poll is held (service/futures.h).
#include <memory>
#include <utility>

#include "base/clock.h"
#include "server/tinker/operations/operations.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

constexpr size_t kJsonWork = 16;  // what a byte that becomes JSON takes, in those of protobuf

// What is large is encoded on another thread.
void respond_encoded(Service& service, const Respond& respond, const std::string& tenant,
                     bool as_json, Response response) {
  const std::shared_ptr<const Encoding> encoding = response.encoding;
  if (!encoding) return respond(std::move(response));
  auto made = std::make_shared<Response>();
  service.run_request_work(
      respond, tenant, encoding->num_bytes * (as_json ? kJsonWork : 1) > Service::kReadAtOnce,
      [made, encoding, as_json] { *made = encoding->make(as_json); },
      [made, respond] { respond(std::move(*made)); });
}

void retrieve_future(Service& service, Request&& request, const Respond& respond) {
  const text::JsonBody json(request.body, "retrieve_future");
  const bool as_json = accepts_json_only(request.header("accept"));
  const auto answer = [&service, respond, as_json, tenant = request.tenant](Response response) {
    respond_encoded(service, respond, tenant, as_json, std::move(response));
  };
  const std::string id = json.root().string("request_id");
  const uint64_t held = service.futures().poll(request.tenant, id, answer, now_seconds());
  if (held == 0 || !request.on_hang_up) return;
  *request.on_hang_up = [&service, id, held] { service.futures().cancel_poll(id, held); };
}

}  // namespace

constinit const Operation kRetrieveFuture = {.path = "retrieve_future",
                                             .run = retrieve_future,
                                             .scope = Scope::kRead,
                                             .effect = Effect::kUpkeep,
                                             .size = BodySize::kTiny,
                                             .watches_peer = true};

}  // namespace strata::server
