// SPDX-License-Identifier: Apache-2.0
// GET get_server_capabilities: the base models and adapters that are served, and how long their
// sequences may be.
#include "server/http/message.h"
#include "server/tinker/operations/operations.h"

namespace strata::server {
namespace {

Response get_server_capabilities(Service& service, const Request& request) {
  JsonArray models;
  for (const BaseName& name : service.parts().names.names()) {
    if (!service.may_sample(request.tenant, name)) continue;
    const api::BaseInfo& base = service.info(api::BaseId{name.model});
    models.add(JsonObject{{"model_name", name.name},
                          {"max_context_length", base.max_context},
                          {"max_trained_length", base.longest_datum},
                          {"trainable", name.adapter.empty()},
                          {"sampleable", true}});
  }
  return json_response(200, JsonObject{{"supported_models", models}}.text());
}

}  // namespace

constinit const Operation kCapabilities = {.method = "GET",
                                           .path = "get_server_capabilities",
                                           .run = get_server_capabilities,
                                           .body = BodyKind::kNone,
                                           .scope = Scope::kRead,
                                           .effect = Effect::kReads};

}  // namespace strata::server
