// SPDX-License-Identifier: Apache-2.0
// HttpServer::State: what an HttpServer has and does behind its header, for server.cc alone. I/O
// thread, but for what starts and ends it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/http/handshakes.h"
#include "server/http/listener.h"
#include "server/http/places.h"
#include "server/http/read_request.h"
#include "server/http/request_check.h"
#include "server/http/server.h"
#include "server/http/stream.h"

namespace strata::server {

constexpr double kQuietSeconds = 10;  // between two lines of the log about lost connections

struct Received;  // in server.cc

struct HttpServer::State {
  State(HttpOptions opts, Router table, Identify who, Observe observer, Admit admission)
      : options(std::move(opts)),
        router(std::move(table)),
        identify(std::move(who)),
        observe(std::move(observer)),
        admit_request(std::move(admission)),
        handshakes(options.max_handshakes),
        places(
            {options.max_connections, options.max_connections_per_address, options.connections}) {}

  boost::asio::awaitable<void> accept_connections();
  boost::asio::awaitable<void> serve_connection(std::shared_ptr<Connection> connection);
  // False where there is no TLS; a client of plain HTTP is told so.
  boost::asio::awaitable<bool> accept_tls(Connection& connection);
  boost::asio::awaitable<bool> serve_request(Connection& connection);
  boost::asio::awaitable<bool> receive_header(Connection& connection, const Incoming& from,
                                              Request& request);
  boost::asio::awaitable<bool> receive_body(Connection& connection, const Incoming& from,
                                            Request& request);
  boost::asio::awaitable<bool> wait_for_bytes(Connection& connection);
  bool admit_connection(Connection& connection);
  // Serves the connection if there is a place for it; else forgets it.
  void accept_connection(const std::shared_ptr<Connection>& connection);
  boost::asio::awaitable<bool> receive_request(Connection& connection, Received& in);
  std::optional<Response> admit_proxied_client(const Connection& connection, Request& request,
                                               std::optional<ProxiedRequest>& counted);
  Respond make_respond_on_io_thread(const std::shared_ptr<Pending>& pending);
  // Accepts no more connections, and cancels those that idle.
  void begin_draining();
  void wait_while_any_is_open(double until);
  std::optional<Response> screen_request(const Connection& connection, const BodyParser& parser,
                                         Request& request, std::optional<ProxiedRequest>& counted);
  void close_connection(const std::shared_ptr<Connection>& connection);
  void watch_peer(Connection& connection, Request& request, std::optional<PeerWatch>& watch);
  boost::asio::awaitable<Response> run_handler(Connection& connection, Request request);
  boost::asio::awaitable<void> refuse_lingering(Connection& connection, Response response,
                                                Request& request);
  // Closes the sending side, then drops what still comes, so that the client reads the answer.
  boost::asio::awaitable<void> linger_close(Connection& connection);
  boost::asio::awaitable<void> run_every(double seconds, std::function<void()> task);
  void run_io();

  void report_exchange(Exchange exchange, int status, double seconds) const;
  // A refusal, as the API of its path has it.
  void put_in_form(std::string_view path, Response& response) const;

  HttpOptions options;
  Router router;
  Identify identify;
  Observe observe;
  Admit admit_request;
  std::optional<AddressRules> rules;
  TlsContext tls;  // null: in the clear
  // Before io, whose end ends the coroutines.
  Turns decompression, reading;
  Handshakes handshakes;
  Places<Connection> places;
  boost::asio::io_context io{1};
  // The thread ends with io.stop() alone: stop() still talks to it when nothing is left to do.
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  std::optional<Listener> listener;
  std::optional<boost::asio::basic_socket_acceptor<Stream::Protocol>> acceptor;
  std::set<std::shared_ptr<Connection>> connections;
  std::vector<std::pair<double, std::function<void()>>> repeated;
  double told_of_refusals = -kQuietSeconds, told_of_faults = -kQuietSeconds;
  bool stopping = false;
  int bound_port = 0;
  std::thread thread;
};

}  // namespace strata::server
