// A response on its way out, in pieces: the deadline is for progress, not for the whole.
#pragma once
#include <boost/asio/awaitable.hpp>

#include "server/http/message.h"
#include "server/http/stream.h"

namespace strata::server {

// Whether all of it was written; each piece has `timeout` seconds.
boost::asio::awaitable<bool> write_response(Stream& stream, const Response& response,
                                            bool head_only, bool keep_alive, double timeout);

}  // namespace strata::server
