// SPDX-License-Identifier: Apache-2.0
// A pass over data: what forward_backward and forward have in common. Faults of the data come
// through the future. A large body is read on other threads, in two steps, since what its data may
// be is known with its model.
#pragma once
#include "server/protocol/forward_backward.h"
#include "server/service/service.h"

namespace strata::server {

void take_pass(Service& service, Request&& request, const Respond& respond, PassForm form);

}  // namespace strata::server
