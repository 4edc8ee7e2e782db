// SPDX-License-Identifier: Apache-2.0
// A request's header, read piece by piece: what it takes is told as it grows.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <functional>

#include "server/http/body/read_body.h"
#include "server/http/message.h"

namespace strata::server {

constexpr size_t kFirstRead = 4 << 10;  // what a connection's buffer has while it idles

// Until the parser is behind the header, within the deadline that the stream has. `hold` is asked
// whether the buffer may be as large as it is. A fault of the syntax, or one of the two below.
boost::asio::awaitable<boost::system::error_code> read_header(Incoming from,
                                                              std::function<bool()> hold);
// The peer left, or its time was up: nobody is there to be told.
bool is_gone(const boost::system::error_code& fault);
// What to answer to any other fault.
Response header_refusal(const boost::system::error_code& fault);

}  // namespace strata::server
