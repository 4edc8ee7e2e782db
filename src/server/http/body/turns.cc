// SPDX-License-Identifier: Apache-2.0
#include "server/http/body/turns.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace strata::server {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

std::list<Turns::Turn*>::iterator Turns::enter(Turn* turn, const std::string& tenant) {
  const auto [found, is_new] = line_of_.try_emplace(tenant, lines_.end());
  if (is_new) found->second = lines_.insert(lines_.end(), Line{tenant, {}});
  std::list<Turn*>& waiting = found->second->waiting;
  return waiting.insert(waiting.end(), turn);
}

// Who had its turn lets the other tenants go first.
void Turns::leave(const std::string& tenant, std::list<Turn*>::iterator place) {
  const auto found = line_of_.find(tenant);
  const auto line = found->second;
  const bool was_first = *place == first();
  line->waiting.erase(place);
  if (line->waiting.empty()) {
    lines_.erase(line);
    line_of_.erase(found);
  } else if (was_first) {
    lines_.splice(lines_.end(), lines_, line);
  }
  if (was_first && first() != nullptr) first()->timer_.cancel();
}

Turns::Turn::Turn(Turns& turns, asio::io_context& io, const std::string& tenant)
    : turns_(turns),
      tenant_(tenant),
      place_(turns.enter(this, tenant)),
      timer_(io, Clock::time_point::max()) {}

Turns::Turn::~Turn() {
  if (has_begun_) {
    const Clock::time_point now = Clock::now();
    turns_.free_at_ = now + (now - begin_);
  }
  turns_.leave(tenant_, place_);
}

asio::awaitable<void> Turns::Turn::begin() {
  boost::system::error_code ignored;
  const auto wait = [&] {
    return timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  };
  while (turns_.first() != this) co_await wait();
  timer_.expires_at(turns_.free_at_);
  co_await wait();
  begin_ = Clock::now();
  has_begun_ = true;
}

}  // namespace strata::server
