// SPDX-License-Identifier: Apache-2.0
#include "server/operations/forward_backward.h"

#include <utility>

#include "server/operations/pass_call.h"

namespace strata::server {
namespace {

void forward_backward(Service& service, Request&& request, const Respond& respond) {
  const bool is_binary = media_type(request.header("content-type")) == kProtobuf;
  take_pass(service, std::move(request), respond, is_binary ? PassForm::kBinary : PassForm::kJson);
}

}  // namespace

constinit const Operation kForwardBackward = {.path = "forward_backward",
                                              .run = forward_backward,
                                              .body = BodyKind::kJsonOrProto,
                                              .size = BodySize::kPass};

}  // namespace strata::server
