// SPDX-License-Identifier: Apache-2.0
// A request's header, read piece by piece: what it takes is told as it grows.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <functional>
#include <string_view>

#include "server/http/body/read_body.h"
#include "server/http/message.h"

namespace strata::server {

constexpr size_t kFirstRead = 4 << 10;  // what a connection's buffer has while it idles
constexpr int kMaxFields = 100;         // a parsed field takes some 150 bytes besides its text

// The lines of a header as they arrive. The parser takes any number of them, and folded ones.
class HeaderLines {
 public:
  // What is wrong with these bytes, behind those of before; nothing behind the header's end.
  [[nodiscard]] boost::system::error_code read(std::string_view arrived);

 private:
  int num_ = 0;
  size_t line_bytes_ = 0;  // of the one that has not ended
  bool has_ended_ = false;
};

// Until the parser is behind the header, within the deadline that the stream has. `hold` is asked
// whether the buffer may be as large as it is. A fault of the syntax, or one of the two below.
boost::asio::awaitable<boost::system::error_code> read_header(Incoming from,
                                                              std::function<bool()> hold);
// Whether the peer waits with its body until it is told to go on (RFC 9110, 10.1.1: HTTP/1.0 knows
// no such thing, and who has no body need not ask).
bool wants_continue(const BodyParser& parser);
// The peer left, or its time was up: nobody is there to be told.
bool is_gone(const boost::system::error_code& fault);
// What to answer to any other fault.
Response header_refusal(const boost::system::error_code& fault);

}  // namespace strata::server
