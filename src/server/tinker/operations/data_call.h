// SPDX-License-Identifier: Apache-2.0
// A call with data: what forward_backward and forward have in common. Faults of the data come
// through the future. A large body is read on another thread, whole and at once: what depends on
// its model, which JSON names behind the data, is asked when it is back.
#pragma once
#include "server/tinker/protocol/forward_backward.h"
#include "server/tinker/service/service.h"

namespace strata::server {

void handle_data_call(Service& service, Request&& request, const Respond& respond, DataForm form);

}  // namespace strata::server
