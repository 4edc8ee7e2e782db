// SPDX-License-Identifier: Apache-2.0
#include "server/http/peer_watch.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "server/http/read_request.h"

namespace strata::server {

namespace asio = boost::asio;
using boost::system::error_code;

struct PeerWatch::State {
  asio::steady_timer ended;
  std::shared_ptr<void> owner;
  Stream& stream;
  boost::beast::flat_buffer& buffer;
  std::function<void()> gone;
  bool is_reading = false;
  bool is_stopping = false;
};

PeerWatch::PeerWatch(asio::io_context& io, std::shared_ptr<void> owner, Stream& stream,
                     boost::beast::flat_buffer& buffer, std::function<void()> gone)
    : state_(std::make_shared<State>(
          State{asio::steady_timer(io, asio::steady_timer::time_point::max()), std::move(owner),
                stream, buffer, std::move(gone)})) {
  stream.expires_never();
  read(state_);
}

PeerWatch::~PeerWatch() {
  state_->is_stopping = true;
  state_->gone = nullptr;
}

void PeerWatch::read(const std::shared_ptr<State>& state) {
  if (state->buffer.size() >= kFirstRead) return;
  state->is_reading = true;
  state->stream.async_read_some(state->buffer.prepare(kFirstRead - state->buffer.size()),
                                [state](const error_code& fault, size_t count) {
                                  state->is_reading = false;
                                  state->ended.cancel();
                                  if (!fault && count > 0) {
                                    state->buffer.commit(count);
                                    if (!state->is_stopping) read(state);
                                  } else if (!state->is_stopping) {
                                    if (const auto gone = std::exchange(state->gone, nullptr))
                                      gone();
                                  }
                                });
}

asio::awaitable<void> PeerWatch::stop() {
  state_->is_stopping = true;
  if (state_->is_reading) state_->stream.cancel();
  while (state_->is_reading) {
    error_code ignored;
    co_await state_->ended.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

}  // namespace strata::server
