// SPDX-License-Identifier: Apache-2.0
#include "server/operations/forward.h"

#include <utility>

#include "server/operations/pass_call.h"

namespace strata::server {
namespace {

void forward(Service& service, Request&& request, const Respond& respond) {
  take_pass(service, std::move(request), respond, PassForm::kJsonForward);
}

}  // namespace

constinit const Operation kForward = {.path = "forward", .run = forward, .size = BodySize::kPass};

}  // namespace strata::server
