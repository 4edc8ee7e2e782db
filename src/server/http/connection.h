// SPDX-License-Identifier: Apache-2.0
// Connection: what a connection of the server's is, from when it is accepted until it ends. I/O
// thread.
#pragma once
#include <boost/beast/core/flat_buffer.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "server/http/read_request.h"
#include "server/http/stream.h"

namespace strata::server {

struct Connection : std::enable_shared_from_this<Connection> {
  Connection(Stream::Protocol::socket&& socket, TlsContext tls)
      : stream(std::move(socket), std::move(tls)) {}
  Stream stream;
  boost::beast::flat_buffer buffer{kMaxBuffer};
  bool idle = true;         // between two exchanges
  bool fresh = true;        // nothing has arrived yet
  std::string address;      // empty: loopback
  bool is_proxied = false;  // a trusted proxy's
  std::string counted;      // where it counts, as far as that is known before a request
  int64_t held = 0;         // bytes that it counts with
  uint64_t idle_order = 0;
  std::string tenant;  // of the last request; empty: it had no key that holds
  bool has_place = false;
  bool is_evicted = false;  // ends, and has no place any more

  // What it keeps while its request is answered, and while it idles, is what little it took at
  // first; what arrived early stays.
  void shrink() {
    if (buffer.capacity() > kFirstRead) buffer.shrink_to_fit();
  }
};

}  // namespace strata::server
