#include "server/http/body/turns.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace strata::server {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

Turns::Turn::Turn(Turns& turns, asio::io_context& io)
    : turns_(turns),
      place_(turns.line_.insert(turns.line_.end(), this)),
      timer_(io, Clock::time_point::max()) {}

Turns::Turn::~Turn() {
  if (has_begun_) {
    const Clock::time_point now = Clock::now();
    turns_.free_at_ = now + (now - begin_);
  }
  const bool was_first = place_ == turns_.line_.begin();
  turns_.line_.erase(place_);
  if (was_first && !turns_.line_.empty()) turns_.line_.front()->timer_.cancel();
}

asio::awaitable<void> Turns::Turn::begin() {
  boost::system::error_code ignored;
  const auto wait = [&] {
    return timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  };
  while (turns_.line_.front() != this) co_await wait();
  timer_.expires_at(turns_.free_at_);
  co_await wait();
  begin_ = Clock::now();
  has_begun_ = true;
}

}  // namespace strata::server
