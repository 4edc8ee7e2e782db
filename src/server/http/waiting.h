// SPDX-License-Identifier: Apache-2.0
// Where a handler's response meets the connection that waits for it. I/O thread.
#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "server/http/message.h"

namespace strata::server {

// The handler may keep its end for as long as it likes, also past the server, so the timer stays
// with the connection.
struct Pending {
  std::optional<Response> response;
  boost::asio::steady_timer* ready = nullptr;  // cancelled by the response; null: nobody waits
};

// A wait for the response, as long as its scope.
struct Waiting {
  Waiting(boost::asio::io_context& io, std::shared_ptr<Pending> what)
      : timer(io, boost::asio::steady_timer::time_point::max()), pending(std::move(what)) {
    pending->ready = &timer;
  }
  ~Waiting() { pending->ready = nullptr; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  boost::asio::steady_timer timer;
  std::shared_ptr<Pending> pending;
};

}  // namespace strata::server
