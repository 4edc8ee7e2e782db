// SPDX-License-Identifier: Apache-2.0
// A request's body off its connection: the framing that Beast's parser reads is bounded here, since
// the parser itself waits for the end of a chunk's line, or of the trailers, for ever. I/O thread.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <optional>
#include <string_view>

#include "server/http/body/body_sink.h"
#include "server/http/body/turns.h"
#include "server/http/stream.h"

namespace strata::server {

// A body whose value is the piece that the parser met last, where it is in the parser's input.
struct PieceBody {
  using value_type = std::string_view;
  class reader {
   public:
    template <bool kIsRequest, typename Fields>
    reader(boost::beast::http::header<kIsRequest, Fields>& /*header*/, value_type& piece)
        : piece_(piece) {}
    template <typename Length>
    void init(const Length& /*known*/, boost::system::error_code& fault) {
      fault = {};
    }
    template <typename Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& fault) {
      const boost::asio::const_buffer bytes = *boost::asio::buffer_sequence_begin(buffers);
      piece_ = {static_cast<const char*>(bytes.data()), bytes.size()};
      fault = {};
      return piece_.size();
    }
    void finish(boost::system::error_code& fault) { fault = {}; }

   private:
    value_type& piece_;
  };
};
using BodyParser = boost::beast::http::request_parser<PieceBody>;

constexpr uint32_t kMaxHeader = 16 << 10;
constexpr size_t kReadChunk = 64 << 10;  // of a body, at once
constexpr size_t kMaxFraming = 8 << 10;  // a chunk's line, or all trailers
constexpr size_t kMaxBuffer = kMaxHeader + kReadChunk;

struct Incoming {
  Stream& stream;
  boost::beast::flat_buffer& buffer;  // what arrived and was not read
  BodyParser& parser;                 // behind the header
};

// Fills request.body. The fault to refuse the request with, if any; status -1 when the connection
// is gone (a deadline closes it).
boost::asio::awaitable<std::optional<BodyFault>> read_body(const HttpOptions& options,
                                                           Incoming from, Turns& decompression,
                                                           boost::asio::io_context& io,
                                                           Request& request);

}  // namespace strata::server
