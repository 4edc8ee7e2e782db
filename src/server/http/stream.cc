// SPDX-License-Identifier: Apache-2.0
#include "server/http/stream.h"

#include <poll.h>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "server/http/read_request.h"

namespace strata::server {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{250};

// Whether its peer writes no more, whatever of what it wrote was not read.
bool peer_has_ended(int socket) {
  pollfd look = {socket, POLLRDHUP, 0};
  return ::poll(&look, 1, 0) > 0;
}

}  // namespace

namespace asio = boost::asio;
using boost::system::error_code;

asio::awaitable<void> Stream::end_tls() {
  error_code ignored;
  if (secured_) {
    co_await secured_->async_shutdown(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

void Pending::deliver(Response made) {
  CHECK(!response.has_value());
  response = std::move(made);
  if (ready != nullptr) ready->cancel();
}

struct PeerWatch::State {
  void notify_disconnect() {
    if (const auto told = std::exchange(gone, nullptr)) told();
  }

  asio::steady_timer ended;
  asio::steady_timer next_look;
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
          State{asio::steady_timer(io, asio::steady_timer::time_point::max()),
                asio::steady_timer(io), std::move(owner), stream, buffer, std::move(gone)})) {
  stream.expires_never();
  watch_for_end(state_);
}

PeerWatch::~PeerWatch() {
  state_->is_stopping = true;
  state_->gone = nullptr;
  state_->next_look.cancel();
}

void PeerWatch::watch_for_end(const std::shared_ptr<State>& state) {
  if (state->buffer.size() >= kFirstRead) return poll_for_end(state);
  state->is_reading = true;
  state->stream.async_read_some(state->buffer.prepare(kFirstRead - state->buffer.size()),
                                [state](const error_code& fault, size_t count) {
                                  handle_read(state, fault.failed(), count);
                                });
}

// Called when a read has ended; where there were bytes, reads on.
void PeerWatch::handle_read(const std::shared_ptr<State>& state, bool has_failed, size_t count) {
  state->is_reading = false;
  state->ended.cancel();
  if (!has_failed && count > 0) {
    state->buffer.commit(count);
    if (!state->is_stopping) watch_for_end(state);
  } else if (!state->is_stopping) {
    state->notify_disconnect();
  }
}

void PeerWatch::poll_for_end(const std::shared_ptr<State>& state) {
  if (state->is_stopping) return;
  if (peer_has_ended(state->stream.socket().native_handle())) return state->notify_disconnect();
  state->next_look.expires_after(kBetweenLooks);
  state->next_look.async_wait([state](const error_code& cancelled) {
    if (!cancelled) poll_for_end(state);
  });
}

asio::awaitable<void> PeerWatch::stop() {
  state_->is_stopping = true;
  state_->next_look.cancel();
  if (state_->is_reading) state_->stream.cancel();
  while (state_->is_reading) {
    error_code ignored;
    co_await state_->ended.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

}  // namespace strata::server
