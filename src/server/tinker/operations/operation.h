// SPDX-License-Identifier: Apache-2.0
// Operation: a call of the Tinker protocol as a row: where it is called, who may, what its body is,
// what it does to its tenant's state, and who runs it. Each stands in a file of its own with how it
// is read and what completes it (a Completion, service/futures.h).
#pragma once
#include <variant>

#include "server/http/router.h"
#include "server/tinker/service/service.h"

namespace strata::server {

struct Operation {
  // Both on the I/O thread; what they throw is the response.
  using AtOnce = Response (*)(Service&, const Request&);
  using Later = void (*)(Service&, Request&&, const Respond&);

  const char* method = "POST";
  const char* path;  // behind /api/v1/
  std::variant<AtOnce, Later> run;
  BodyKind body = BodyKind::kJson;
  Scope scope = Scope::kAll;
  Effect effect = Effect::kChanges;
  BodySize size = BodySize::kSmall;
  bool needs_key = true;
  bool watches_peer = false;  // Route's
  bool needs_admin = false;
};

}  // namespace strata::server
