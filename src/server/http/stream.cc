// SPDX-License-Identifier: Apache-2.0
#include "server/http/stream.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace strata::server {

namespace asio = boost::asio;
using boost::system::error_code;

asio::awaitable<void> Stream::end() {
  error_code ignored;
  if (secured_) {
    co_await secured_->async_shutdown(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

}  // namespace strata::server
