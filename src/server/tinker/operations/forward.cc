// SPDX-License-Identifier: Apache-2.0
// POST forward: the losses of data under forward_input, as JSON, without a gradient.
#include <utility>

#include "server/tinker/operations/data_call.h"
#include "server/tinker/operations/operations.h"

namespace strata::server {
namespace {

void forward(Service& service, Request&& request, const Respond& respond) {
  handle_data_call(service, std::move(request), respond, DataForm::kJsonForward);
}

}  // namespace

constinit const Operation kForward = {.path = "forward", .run = forward, .size = BodySize::kData};

}  // namespace strata::server
