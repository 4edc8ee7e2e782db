// A response on its way out, in pieces: the deadline is for progress, not for the whole.
#pragma once
#include <boost/asio/awaitable.hpp>

#include "base/shared_limit.h"
#include "server/http/message.h"
#include "server/http/stream.h"

namespace strata::server {

// What the response holds until it has been sent. Where `tenant` has no room for that, the response
// becomes one that says so, with this status.
SharedLimit::Share hold_response(const SharedLimit& limit, const std::string& tenant,
                                 int busy_status, Response& response);

// Whether all of it was written; each piece has `timeout` seconds.
boost::asio::awaitable<bool> write_response(Stream& stream, const Response& response,
                                            bool head_only, bool keep_alive, double timeout);

}  // namespace strata::server
