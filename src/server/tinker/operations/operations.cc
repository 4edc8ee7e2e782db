// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>

#include "server/tinker/operations/operation.h"

namespace strata::server {
namespace {

Handler handler_of(const Operation& operation, Service& service) {
  if (const auto* run = std::get_if<Operation::AtOnce>(&operation.run))
    return at_once(std::bind_front(*run, std::ref(service)));
  return std::bind_front(std::get<Operation::Later>(operation.run), std::ref(service));
}

}  // namespace

void add_operations(Router& router, Service& service) {
  for (const Operation* operation : all_operations()) {
    router.add({.method = operation->method,
                .pattern = std::string("/api/v1/") + operation->path,
                .body = operation->body,
                .handler = handler_of(*operation, service),
                .needs_key = operation->needs_key,
                .size = operation->size,
                .scope = operation->scope,
                .effect = operation->effect,
                .watches_peer = operation->watches_peer,
                .needs_admin = operation->needs_admin});
  }
}

}  // namespace strata::server
