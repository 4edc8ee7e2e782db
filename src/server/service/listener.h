// SPDX-License-Identifier: Apache-2.0
// Listener: hears what happens to one request, in order: Accepted first, before the submission
// returns, and an Outcome last. I/O thread only. It must not throw. What it keeps of events until
// somebody has read it is its own to bound (http/body_stream.h does, by tenant).
#pragma once
#include <functional>

#include "api/event.h"

namespace strata::server {

using Listener = std::function<void(const api::Event&)>;

}  // namespace strata::server
