// SPDX-License-Identifier: Apache-2.0
// A response on its way out, in pieces: the deadline is for progress, not for the whole.
#pragma once
#include <boost/asio/awaitable.hpp>

#include "base/shared_limit.h"
#include "server/http/message.h"
#include "server/http/pieces.h"
#include "server/http/server.h"

namespace strata::server {

// What the response holds until it has been sent. Where `tenant` has no space for that, the
// response becomes one that says so, with this status.
SharedLimit::Share hold_response(const SharedLimit& limit, const std::string& tenant,
                                 int busy_status, Response& response);

// Likewise for one that is a file; HEAD holds nothing.
SharedLimit::Share hold_download(const HttpOptions& options, bool head_only, Response& response);

// Whether all of it was written; each piece has body_timeout seconds, and all of them come at the
// least rate.
boost::asio::awaitable<bool> write_response(Outgoing to, const Response& response, bool head_only,
                                            bool keep_alive);

}  // namespace strata::server
