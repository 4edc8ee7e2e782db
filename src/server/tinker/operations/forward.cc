// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/operations/forward.h"

#include <utility>

#include "server/tinker/operations/data_call.h"

namespace strata::server {
namespace {

void forward(Service& service, Request&& request, const Respond& respond) {
  handle_data_call(service, std::move(request), respond, DataForm::kJsonForward);
}

}  // namespace

constinit const Operation kForward = {.path = "forward", .run = forward, .size = BodySize::kData};

}  // namespace strata::server
