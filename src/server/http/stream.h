// SPDX-License-Identifier: Apache-2.0
// Stream: the bytes of one connection, in the clear or through TLS, with a deadline for each
// operation; and how a connection waits for its response, with an eye on its peer. I/O thread only.
#pragma once
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "server/http/message.h"
#include "server/http/tls.h"

namespace strata::server {

// An AsyncReadStream and AsyncWriteStream, as Asio and Beast want them.
class Stream {
 public:
  using Protocol = boost::asio::generic::stream_protocol;  // of any family
  using Plain = boost::beast::basic_stream<Protocol>;
  using executor_type = Plain::executor_type;
  template <typename Token>
  using Transfer =
      typename boost::asio::async_result<std::decay_t<Token>,
                                         void(boost::system::error_code, size_t)>::return_type;

  // Through TLS where `tls` is not null.
  Stream(Protocol::socket&& socket, TlsContext tls) : tls_(std::move(tls)) {
    if (tls_) {
      secured_.emplace(Plain(std::move(socket)), *tls_);
    } else {
      plain_.emplace(std::move(socket));
    }
  }

  [[nodiscard]] bool is_secured() const { return secured_.has_value(); }
  [[nodiscard]] executor_type get_executor() { return plain().get_executor(); }
  // Below TLS.
  [[nodiscard]] Plain& plain() { return secured_ ? secured_->next_layer() : *plain_; }
  [[nodiscard]] Protocol::socket& socket() { return plain().socket(); }
  template <typename Rep, typename Period>
  void expires_after(std::chrono::duration<Rep, Period> time) {
    plain().expires_after(std::chrono::duration_cast<std::chrono::nanoseconds>(time));
  }
  void expires_never() { plain().expires_never(); }
  void cancel() { plain().cancel(); }
  void close() { plain().close(); }

  template <typename Buffers, typename Token>
  Transfer<Token> async_read_some(const Buffers& buffers, Token&& token) {
    if (secured_) return secured_->async_read_some(buffers, std::forward<Token>(token));
    return plain_->async_read_some(buffers, std::forward<Token>(token));
  }
  template <typename Buffers, typename Token>
  Transfer<Token> async_write_some(const Buffers& buffers, Token&& token) {
    if (secured_) return secured_->async_write_some(buffers, std::forward<Token>(token));
    return plain_->async_write_some(buffers, std::forward<Token>(token));
  }

  // TLS begins: the client's first bytes, and what is called at the end, (fault, bytes used).
  template <typename Done>
  void begin_tls(boost::asio::const_buffer hello, Done&& done) {
    secured_->async_handshake(boost::asio::ssl::stream_base::server, hello,
                              std::forward<Done>(done));
  }
  // What TLS ends with; nothing in the clear.
  boost::asio::awaitable<void> end_tls();

 private:
  TlsContext tls_;  // outlives secured_
  std::optional<Plain> plain_;
  // Not Beast's own: of {empty, more than 16 KiB} that one writes nothing, and async_write() then
  // believes that it is done.
  std::optional<boost::asio::ssl::stream<Plain>> secured_;
};

// Where a handler's response meets the connection that waits for it. The handler may keep its end
// for as long as it likes, also past the server, so the timer stays with the connection.
struct Pending {
  std::optional<Response> response;
  boost::asio::steady_timer* ready = nullptr;  // cancelled by the response; null: nobody waits

  void deliver(Response made);  // once
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

// PeerWatch: reads from a peer that is only to be written to, so that its end is seen at once. What
// it sends early, a further request, is kept in the connection's buffer, as far as that has space
// without growing; then the socket is looked at, some times a second, for its end. I/O thread only.
class PeerWatch {
 public:
  // `owner` keeps the stream and the buffer, `gone` runs when the peer has closed its side.
  PeerWatch(boost::asio::io_context& io, std::shared_ptr<void> owner, Stream& stream,
            boost::beast::flat_buffer& buffer, std::function<void()> gone);
  ~PeerWatch();  // after an exception: `gone` is run no more
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Nothing is read afterwards, and nothing that was is lost.
  boost::asio::awaitable<void> stop();

 private:
  struct State;
  // Reads on while there is space for what comes; else polls for the peer's end.
  static void watch_for_end(const std::shared_ptr<State>& state);
  static void handle_read(const std::shared_ptr<State>& state, bool has_failed, size_t count);
  static void poll_for_end(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;
};

}  // namespace strata::server
