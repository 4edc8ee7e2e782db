// SPDX-License-Identifier: Apache-2.0
// Handshakes: the TLS handshakes that are under way. Each costs this thread a signature, so they
// are begun one after the other, and behind each the thread is everybody else's for as long. Those
// whose peer says nothing cost space alone: of more than so many the oldest ends. I/O thread only.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <list>
#include <string_view>

#include "server/http/read_request.h"
#include "server/http/stream.h"

namespace strata::server {

class Handshakes {
 public:
  explicit Handshakes(int64_t most) : most_(most) {}

  // TLS on a fresh connection, within the deadline that the stream has.
  boost::asio::awaitable<boost::system::error_code> handshake(Stream& stream,
                                                              boost::asio::io_context& io);

 private:
  // An unfinished one, as long as its scope.
  struct Place {
    Place(Handshakes& of, Stream& with);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    Handshakes& all;
    Stream& stream;
    std::list<Place*>::iterator at;
    bool is_ended = false;
  };

  int64_t most_;
  std::list<Place*> open_;  // oldest first
  Turns turns_;
};

// Whether these bytes are the beginning of a ClientHello whose end is still to come.
bool is_partial_client_hello(std::string_view bytes);

}  // namespace strata::server
