// SPDX-License-Identifier: Apache-2.0
#include "server/openai/endpoints_of_others.h"

#include "server/openai/openai_error.h"

namespace strata::server {
namespace {

struct RefusedEndpoint {
  const char* pattern;
  const char* why;
};
constexpr RefusedEndpoint kRefused[] = {
    {"/v1/responses",
     "OpenAI's Responses API is not supported by this server; use POST /v1/chat/completions "
     "(client.chat.completions.create in the openai package)"},
    {"/v1/messages",
     "Anthropic's API is not supported by this server; use POST /v1/chat/completions"},
    {"/v1/embeddings",
     "this server makes no embeddings, it serves models that write text; use POST "
     "/v1/chat/completions or /v1/completions"},
};

// It takes the body of a whole chat, so that its sender reads this reason and no other.
Route refusal_route(const RefusedEndpoint& refused) {
  return {.method = "POST",
          .pattern = refused.pattern,
          .body = BodyKind::kJson,
          .handler = at_once([why = refused.why](const Request&) {
            return openai_error_response(404, why, "", "unsupported_endpoint");
          }),
          .size = BodySize::kSample,
          .scope = Scope::kRead,
          .effect = Effect::kReads};
}

}  // namespace

void add_endpoints_of_others(Router& router, const Service& service) {
  for (const RefusedEndpoint& refused : kRefused) router.add(refusal_route(refused));
  router.add({.method = "GET",
              .pattern = "/health",
              .handler = at_once([&service](const Request&) { return service.readiness(); }),
              .needs_key = false,
              .scope = Scope::kRead,
              .effect = Effect::kReads});
}

}  // namespace strata::server
