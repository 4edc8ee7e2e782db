// SPDX-License-Identifier: Apache-2.0
// Stream: the bytes of one connection, in the clear or through TLS, with a deadline for each
// operation. An AsyncReadStream and AsyncWriteStream, as Asio and Beast want them. I/O thread only.
#pragma once
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <chrono>
#include <optional>
#include <type_traits>
#include <utility>

#include "server/http/tls.h"

namespace strata::server {

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
  void begin(boost::asio::const_buffer hello, Done&& done) {
    secured_->async_handshake(boost::asio::ssl::stream_base::server, hello,
                              std::forward<Done>(done));
  }
  // What TLS ends with; nothing in the clear.
  boost::asio::awaitable<void> end();

 private:
  TlsContext tls_;  // outlives secured_
  std::optional<Plain> plain_;
  // Not Beast's own: of {empty, more than 16 KiB} that one writes nothing, and async_write() then
  // believes that it is done.
  std::optional<boost::asio::ssl::stream<Plain>> secured_;
};

}  // namespace strata::server
