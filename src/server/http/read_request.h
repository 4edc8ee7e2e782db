// SPDX-License-Identifier: Apache-2.0
// A request off its connection: its header piece by piece, whose memory is told as it grows, then
// its body, decompressed and held to its limit, to the least rate, and to what its tenant and all
// may have in bodies. The framing that Beast's parser reads is bounded here, since the parser
// itself waits for the end of a chunk's line, or of the trailers, for ever. I/O thread.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/server.h"
#include "server/http/stream.h"

namespace strata::server {

// Turns: pieces of work of several coroutines, one after the other: tenants take turns, and those
// of one tenant come in the order in which they ask. Behind each the thread is everybody else's for
// as long as it took. I/O thread only.
class Turns {
 public:
  // A place in the line, given up with the object: at the end of the work, or of the coroutine.
  class Turn {
   public:
    Turn(Turns& turns, boost::asio::io_context& io, const std::string& tenant);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    boost::asio::awaitable<void> await_turn();

   private:
    friend class Turns;
    Turns& turns_;
    std::string tenant_;
    std::list<Turn*>::iterator place_;
    boost::asio::steady_timer timer_;  // cancelled when it is this one's turn
    std::chrono::steady_clock::time_point begin_;
    bool has_begun_ = false;
  };

 private:
  struct Line {
    std::string tenant;
    std::list<Turn*> waiting;  // never empty
  };

  std::list<Turn*>::iterator enqueue(Turn* turn, const std::string& tenant);
  // Leaves the line and wakes who is next; whoever had its turn lets other tenants go first.
  void leave_line(const std::string& tenant, std::list<Turn*>::iterator place);
  [[nodiscard]] Turn* first() const {
    return lines_.empty() ? nullptr : lines_.front().waiting.front();
  }

  std::list<Line> lines_;  // the first one's first has its turn
  std::map<std::string, std::list<Line>::iterator> line_of_;
  std::chrono::steady_clock::time_point free_at_;
};

// What handlers read and write at once takes a few milliseconds at most; of hundreds at a time,
// those of one tenant are to leave the thread to others.
bool needs_turn(const Request& request);

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
constexpr size_t kFirstRead = 4 << 10;  // what a connection's buffer has while it idles
constexpr int kMaxFields = 100;         // a parsed field takes some 150 bytes besides its text

struct Incoming {
  Stream& stream;
  boost::beast::flat_buffer& buffer;  // what arrived and was not read
  BodyParser& parser;                 // behind the header
};

// The lines of a header as they arrive. The parser takes any number of them, and folded ones.
class HeaderLines {
 public:
  // What is wrong with these bytes, behind those of before; nothing behind the header's end.
  [[nodiscard]] boost::system::error_code check_next_bytes(std::string_view arrived);

 private:
  int num_ = 0;
  size_t line_bytes_ = 0;  // of the one that has not ended
  bool has_ended_ = false;
};

// Until the parser is behind the header, within the deadline that the stream has. `hold` is asked
// whether the buffer may be as large as it is. A fault of the syntax, or one of the two below.
boost::asio::awaitable<boost::system::error_code> read_header(Incoming from,
                                                              std::function<bool()> hold);
// Whether the peer waits with its body until it is told to go on (RFC 9110, 10.1.1: HTTP/1.0 knows
// no such thing, and who has no body need not ask).
bool expects_continue(const BodyParser& parser);
// Tells it to. False: it has gone.
boost::asio::awaitable<bool> send_continue(Stream& stream);
// The peer left, or its time was up: nobody is there to be told.
bool is_gone(const boost::system::error_code& fault);
// What to answer to any other fault.
Response header_refusal(const boost::system::error_code& fault);

struct BodyFault {
  int status = 0;
  std::string text;
};

Response body_refusal(const BodyFault& fault);

// Fills request.body. The fault to refuse the request with, if any; status -1 when the connection
// is gone (a deadline closes it).
boost::asio::awaitable<std::optional<BodyFault>> read_body(const HttpOptions& options,
                                                           Incoming from, Turns& decompression,
                                                           boost::asio::io_context& io,
                                                           Request& request);

}  // namespace strata::server
