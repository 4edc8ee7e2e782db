// SPDX-License-Identifier: Apache-2.0
// Endpoint: a call as a row: where it is called, who may, what its body is, what it does to its
// tenant's state, and who runs it, of an object `Of` that the floor's calls work on: the service
// of the protocol's operations, Rest, OpenAiEndpoint. There is one way to add a call: its row.
//   constexpr Endpoint<Rest> kSetTtl = {.method = "PUT", .path = "...", .run = set_ttl};
//   add_endpoint(router, "/api/v1/", kSetTtl, rest);
#pragma once
#include <functional>
#include <string>
#include <variant>

#include "server/http/router.h"

namespace strata::server {

template <typename Of>
struct Endpoint {
  // All on the I/O thread; what they throw is the response. Whatever answers later keeps `respond`.
  using AtOnce = Response (*)(Of&, const Request&);
  using Later = void (*)(Of&, Request&&, const Respond&);

  const char* method = "POST";
  const char* path;
  std::variant<AtOnce, Later> run;
  BodyKind body = BodyKind::kJson;
  Scope scope = Scope::kAll;
  Effect effect = Effect::kChanges;
  BodySize size = BodySize::kSmall;
  bool needs_key = true;
  bool watches_peer = false;  // Route's
  bool needs_admin = false;
};

template <typename Of>
Handler handler_of(const Endpoint<Of>& endpoint, Of& of) {
  if (const auto* run = std::get_if<typename Endpoint<Of>::AtOnce>(&endpoint.run))
    return at_once(std::bind_front(*run, std::ref(of)));
  return std::bind_front(std::get<typename Endpoint<Of>::Later>(endpoint.run), std::ref(of));
}

// `of` outlives the router; paths stand behind `prefix`.
template <typename Of>
void add_endpoint(Router& router, const std::string& prefix, const Endpoint<Of>& endpoint, Of& of) {
  router.add({.method = endpoint.method,
              .pattern = prefix + endpoint.path,
              .body = endpoint.body,
              .handler = handler_of(endpoint, of),
              .needs_key = endpoint.needs_key,
              .size = endpoint.size,
              .scope = endpoint.scope,
              .effect = endpoint.effect,
              .watches_peer = endpoint.watches_peer,
              .needs_admin = endpoint.needs_admin});
}

}  // namespace strata::server
