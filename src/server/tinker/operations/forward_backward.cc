// SPDX-License-Identifier: Apache-2.0
// POST forward_backward: gradients of a loss added to a model's, a ForwardBackwardRequest
// (tinker.proto) or JSON (protocol/json_data.h).
#include <utility>

#include "server/tinker/operations/data_call.h"
#include "server/tinker/operations/operations.h"

namespace strata::server {
namespace {

void forward_backward(Service& service, Request&& request, const Respond& respond) {
  const bool is_binary = media_type(request.header("content-type")) == kProtobuf;
  handle_data_call(service, std::move(request), respond,
                   is_binary ? DataForm::kBinary : DataForm::kJson);
}

}  // namespace

constinit const Operation kForwardBackward = {.path = "forward_backward",
                                              .run = forward_backward,
                                              .body = BodyKind::kJsonOrProto,
                                              .size = BodySize::kData};

}  // namespace strata::server
