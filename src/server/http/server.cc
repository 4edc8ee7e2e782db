// SPDX-License-Identifier: Apache-2.0
#include "server/http/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <future>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "server/http/listener.h"
#include "server/http/places.h"
#include "server/http/read_request.h"
#include "server/http/refusals.h"
#include "server/http/request_check.h"
#include "server/http/server_state.h"
#include "server/http/stream.h"
#include "server/http/write_response.h"

namespace strata::server {

// A request that was read whole, and what it holds until its answer's last byte.
struct Received {
  Received() = default;
  Received(const Received&) = delete;
  Received& operator=(const Received&) = delete;
  // Whoever still keeps the request, for what goes on after its answer, holds nothing by that.
  ~Received() {
    if (charge != nullptr) charge->release_all();
  }
  Request request;
  std::optional<ProxiedRequest> counted;  // at its client, where a trusted proxy brings it
  std::shared_ptr<Charge> charge;         // the request's
  double begin = 0;                       // now_seconds(), behind its header
  bool is_http10 = false;
  bool keep_alive = false;
};

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Protocol = Stream::Protocol;

constexpr size_t kMostFaultText = 200;
constexpr double kLingerSeconds = 2.0;  // after an early answer: lets the client read it

std::chrono::steady_clock::duration in_seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

// Once in kQuietSeconds, since `last`.
void warn_rarely(double& last, const std::string& what) {
  if (now_seconds() - last < kQuietSeconds) return;
  last = now_seconds();
  log(LogLevel::kWarning, "http: " + what);
}

// False: its peer has gone.
bool fill_peer_address(Connection& connection, const TrustedProxies& proxies) {
  error_code fault;
  const Protocol::endpoint peer = connection.stream.socket().remote_endpoint(fault);
  if (fault) return false;
  connection.address = remote_peer_address(peer.data());
  connection.is_proxied = proxies.trusts(peer.data());
  connection.counted = connection.is_proxied ? "" : connection.address;
  return true;
}

}  // namespace

// What cannot be accepted or held, without memory or descriptors, is lost alone; some of those in
// use must end before the next one.
asio::awaitable<void> HttpServer::State::accept_connections() {
  std::string fault;  // of the one before; in memory that is there already
  fault.reserve(kMostFaultText);
  for (;;) {
    std::shared_ptr<Connection> connection;
    try {
      if (!fault.empty()) {
        asio::steady_timer pause(io, in_seconds(0.1));
        co_await pause.async_wait(asio::use_awaitable);
        warn_rarely(told_of_faults, "accept: " + fault);
        fault.clear();
      }
      if (stopping) co_return;
      Protocol::socket socket = co_await acceptor->async_accept(asio::use_awaitable);
      if (stopping) co_return;
      error_code ignored;
      socket.set_option(asio::ip::tcp::no_delay(true), ignored);
      connection = std::make_shared<Connection>(std::move(socket), tls);
      accept_connection(connection);
    } catch (const std::exception& error) {
      if (stopping) co_return;
      fault.assign(std::string_view(error.what()).substr(0, kMostFaultText));
      if (connection) close_connection(connection);
    }
  }
}

void HttpServer::State::accept_connection(const std::shared_ptr<Connection>& connection) {
  connections.insert(connection);
  if (admit_connection(*connection)) {
    asio::co_spawn(io, serve_connection(connection), asio::detached);
  } else {
    connections.erase(connection);
  }
}

void HttpServer::State::close_connection(const std::shared_ptr<Connection>& connection) {
  error_code ignored;
  connection->stream.socket().shutdown(Protocol::socket::shutdown_both, ignored);
  connection->stream.close();
  connections.erase(connection);
  places.release_place(*connection);
}

// False for one connection too many: it is told so, if that takes no time, and closed.
bool HttpServer::State::admit_connection(Connection& connection) {
  if (!fill_peer_address(connection, options.proxies)) return false;
  const std::string_view option = places.claim_place(connection);
  if (option.empty()) return true;
  warn_rarely(told_of_refusals, fmt::format("connections are refused: {} are open ({})",
                                            places.limit().num_open(), option));
  if (tls) return false;  // a client that waits for TLS cannot read it
  close_with_text(connection.stream.socket(), closing_text(refuse(kTooManyConnections, {option})));
  return false;
}

asio::awaitable<void> HttpServer::State::serve_connection(std::shared_ptr<Connection> connection) {
  try {
    bool again = co_await accept_tls(*connection);
    const bool begun = again;
    while (again && !stopping && !connection->is_evicted) {
      again = co_await serve_request(*connection);
    }
    if (begun && !stopping && !connection->is_evicted) {
      connection->stream.expires_after(in_seconds(kLingerSeconds));
      co_await connection->stream.end_tls();
    }
  } catch (const std::exception& error) {
    log(LogLevel::kInfo, fmt::format("http: connection dropped: {}", error.what()));
  }
  close_connection(connection);
}

asio::awaitable<bool> HttpServer::State::accept_tls(Connection& connection) {
  if (!connection.stream.is_secured()) co_return true;
  connection.stream.expires_after(in_seconds(options.header_timeout));
  const error_code fault = co_await handshakes.handshake(connection.stream, io);
  if (!fault) co_return true;
  log(LogLevel::kDebug, fmt::format("http: no TLS: {}", fault.message()));
  if (!is_plain_http(fault)) co_return false;
  const std::string text = plain_http_text();
  error_code ignored;
  co_await asio::async_write(connection.stream.plain(), asio::buffer(text),
                             asio::redirect_error(asio::use_awaitable, ignored));
  co_return false;
}

// False when the peer closed, or was silent for the keep-alive time; a new one, for the header's.
asio::awaitable<bool> HttpServer::State::wait_for_bytes(Connection& connection) {
  places.try_recount_bytes(connection);
  places.begin_idle(connection);
  if (connection.buffer.size() > 0) co_return true;
  connection.idle = true;
  connection.stream.expires_after(
      in_seconds(connection.fresh ? options.header_timeout : options.keepalive));
  error_code fault;
  const size_t count = co_await connection.stream.async_read_some(
      connection.buffer.prepare(kFirstRead), asio::redirect_error(asio::use_awaitable, fault));
  connection.buffer.commit(count);
  connection.idle = false;
  connection.fresh = false;
  co_return !fault && count > 0;
}

void HttpServer::State::put_in_form(std::string_view path, Response& response) const {
  if (response.status >= 400 && options.put_in_form) options.put_in_form(path, response);
}

void HttpServer::State::report_exchange(Exchange exchange, int status, double seconds) const {
  if (!observe) return;
  exchange.status = status;
  exchange.seconds = seconds;
  observe(exchange);
}

// From here on the request's on_hang_up runs when its peer goes.
void HttpServer::State::watch_peer(Connection& connection, Request& request,
                                   std::optional<PeerWatch>& watch) {
  const auto hang_up = request.on_hang_up = std::make_shared<std::function<void()>>();
  watch.emplace(io, connection.shared_from_this(), connection.stream, connection.buffer, [hang_up] {
    if (*hang_up) (*hang_up)();
  });
}

// From any thread; from the I/O thread at once.
Respond HttpServer::State::make_respond_on_io_thread(const std::shared_ptr<Pending>& pending) {
  return [this, pending](Response response) {
    auto deliver = [pending, response = std::move(response)]() mutable {
      pending->deliver(std::move(response));
    };
    if (std::this_thread::get_id() == thread.get_id()) {
      deliver();
    } else {
      asio::post(io, std::move(deliver));
    }
  };
}

asio::awaitable<Response> HttpServer::State::run_handler(Connection& connection, Request request) {
  std::optional<PeerWatch> watch;
  if (request.route != nullptr && request.route->watches_peer)
    watch_peer(connection, request, watch);
  auto pending = std::make_shared<Pending>();
  Waiting waiting(io, pending);
  std::optional<Turns::Turn> turn;
  if (needs_turn(request)) {
    turn.emplace(reading, io, request.tenant);
    co_await turn->await_turn();
  }
  router.dispatch(std::move(request), make_respond_on_io_thread(pending));
  turn.reset();
  while (!pending->response) {
    error_code ignored;
    co_await waiting.timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  if (watch) co_await watch->stop();
  co_return std::move(*pending->response);
}

// Answers before the whole request was read: what still arrives is thrown away for a short while,
// or the peer would see a reset instead of the answer.
asio::awaitable<void> HttpServer::State::refuse_lingering(Connection& connection, Response response,
                                                          Request& request) {
  put_in_form(request.path, response);
  const bool written = co_await write_response({connection.stream, io, options}, response,
                                               request.method == "HEAD", /*keep_alive=*/false);
  report_exchange(exchange_of(request), response.status, 0.0);
  if (!written) co_return;
  // Many may linger: each as a connection that idles.
  request = Request();
  response = Response();
  co_await linger_close(connection);
}

asio::awaitable<void> HttpServer::State::linger_close(Connection& connection) {
  connection.buffer.clear();
  connection.shrink();
  places.try_recount_bytes(connection);
  places.begin_linger(connection);
  error_code fault;
  if (!tls) connection.stream.socket().shutdown(Protocol::socket::shutdown_send, fault);
  connection.stream.expires_after(in_seconds(kLingerSeconds));
  while (!fault) {
    co_await connection.stream.async_read_some(connection.buffer.prepare(kFirstRead),
                                               asio::redirect_error(asio::use_awaitable, fault));
  }
}

// False: it is none, and whoever still listens knows why.
asio::awaitable<bool> HttpServer::State::receive_header(Connection& connection,
                                                        const Incoming& from, Request& request) {
  connection.stream.expires_after(in_seconds(options.header_timeout));
  const std::function<bool()> has_place = [&] { return places.try_recount_bytes(connection); };
  const error_code fault = co_await read_header(from, has_place);
  places.end_idle(connection);
  request.address = connection.address;
  if (fault && !is_gone(fault)) {
    request.path = plain_path(*rules, target_of(from.parser));
    co_await refuse_lingering(connection, header_refusal(fault), request);
  }
  co_return !fault;
}

// The body, behind its head. False: there is none, and whoever still listens knows why.
asio::awaitable<bool> HttpServer::State::receive_body(Connection& connection, const Incoming& from,
                                                      Request& request) {
  const std::optional<BodyFault> fault =
      co_await read_body(options, from, decompression, io, request);
  if (!fault) {
    connection.shrink();
    co_return true;
  }
  if (fault->status >= 0) {
    request.free_body();
    co_await refuse_lingering(connection, body_refusal(*fault), request);
  }
  co_return false;
}

// A request that a trusted proxy brings is refused where its client has too many.
std::optional<Response> HttpServer::State::admit_proxied_client(
    const Connection& connection, Request& request, std::optional<ProxiedRequest>& counted) {
  request.address = options.proxies.client_address(request.headers, connection.address);
  counted.emplace(places.limit(), request.address, connection.held);
  const std::string_view option = counted->exceeded_limit_option();
  if (option.empty()) return std::nullopt;
  return refuse(kTooManyOfClient, {option});
}

// The refusal of a request whose header was read; or its charge holds what its connection takes.
std::optional<Response> HttpServer::State::screen_request(const Connection& connection,
                                                          const BodyParser& parser,
                                                          Request& request,
                                                          std::optional<ProxiedRequest>& counted) {
  std::optional<Response> refusal =
      validate_header({options, router, *rules, identify, admit_request}, parser, request);
  if (connection.is_proxied) {
    std::optional<Response> busy = admit_proxied_client(connection, request, counted);
    if (!refusal) refusal = std::move(busy);
  }
  if (refusal) return refusal;
  request.charge = std::make_shared<Charge>(options.accounts.open(request.tenant));
  return admit_in_flight(request, connection.held);
}

// A request with its body. False: there is none, and whoever still listens knows why.
asio::awaitable<bool> HttpServer::State::receive_request(Connection& connection, Received& in) {
  BodyParser parser;
  parser.header_limit(kMaxHeader);
  parser.body_limit(boost::none);  // BodySink has the limit of the path
  const Incoming from = {connection.stream, connection.buffer, parser};
  const bool has_header = co_await receive_header(connection, from, in.request);
  if (!has_header) co_return false;
  in.begin = now_seconds();
  std::optional<Response> refusal = screen_request(connection, parser, in.request, in.counted);
  in.charge = in.request.charge;
  in.keep_alive = parser.keep_alive();
  in.is_http10 = parser.get().version() < 11;
  const bool expects = expects_continue(parser);
  parser.get().clear();  // `in.request` has a copy
  // What is refused has no share, so anybody may have its place.
  places.set_tenant(connection, refusal ? "" : in.request.tenant);
  if (refusal) {
    co_await refuse_lingering(connection, std::move(*refusal), in.request);
    co_return false;
  }
  if (expects) {
    const bool sent = co_await send_continue(connection.stream);
    if (!sent) co_return false;
  }
  co_return co_await receive_body(connection, from, in.request);
}

// One request and its response; whether the connection may carry another.
asio::awaitable<bool> HttpServer::State::serve_request(Connection& connection) {
  const bool arrived = co_await wait_for_bytes(connection);
  if (!arrived) co_return false;
  Received in;
  const bool complete = co_await receive_request(connection, in);
  if (!complete) co_return false;
  in.request.about = std::make_shared<std::string>();
  Exchange told = exchange_of(in.request);
  connection.stream.expires_never();
  Response response = co_await run_handler(connection, std::move(in.request));
  put_in_form(told.path, response);
  const AnswerTo answered = {
      *in.charge,
      told.method,
      told.path,
      in.is_http10,
      in.keep_alive && !stopping && !connection.is_evicted,
      connection.shared_from_this(),
      connection.buffer,
      [&](const std::string& tenant) { places.set_tenant(connection, tenant); }};
  const bool again = co_await send_response({connection.stream, io, options}, answered, response);
  report_exchange(std::move(told), response.status, now_seconds() - in.begin);
  co_return again;
}

asio::awaitable<void> HttpServer::State::run_every(double seconds, std::function<void()> task) {
  asio::steady_timer timer(io);
  for (;;) {
    timer.expires_after(in_seconds(seconds));
    error_code fault;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, fault));
    if (stopping && connections.empty()) co_return;
    try {
      task();
    } catch (const std::exception& error) {
      log(LogLevel::kError, fmt::format("http: a timer's task failed: {}", error.what()));
    }
  }
}

// Until io.stop(), whatever a task throws.
void HttpServer::State::run_io() {
  for (;;) {
    try {
      io.run();
      return;
    } catch (const std::exception& error) {
      log(LogLevel::kError, fmt::format("http: a task failed: {}", error.what()));
    }
  }
}

void HttpServer::State::begin_draining() {
  stopping = true;
  error_code ignored;
  acceptor->close(ignored);
  for (const auto& connection : connections) {
    if (connection->idle) connection->stream.cancel();
  }
}

void HttpServer::State::wait_while_any_is_open(double until) {
  for (bool busy = true; busy && now_seconds() < until;) {
    std::promise<bool> any;
    asio::post(io, [&] { any.set_value(!connections.empty()); });
    busy = any.get_future().get();
    if (busy) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

HttpServer::HttpServer(const HttpOptions& options, Router router, Identify identify,
                       Observe observe, Admit admit)
    : state_(std::make_unique<State>(options, std::move(router), std::move(identify),
                                     std::move(observe), std::move(admit))) {
  for (const Route& route : state_->router.routes()) {
    CHECK(!route.needs_key || state_->identify, route.pattern);
  }
}

HttpServer::~HttpServer() { stop(0.0); }

void HttpServer::start() {
  State& s = *state_;
  if (!s.options.tls.empty()) s.tls = load_tls_context(s.options.tls);
  s.listener.emplace(ListenAddress{s.options.option, s.options.host, s.options.port,
                                   s.options.socket_path, s.options.socket_mode});
  s.acceptor.emplace(s.io, Protocol(s.listener->family(), 0), s.listener->take());
  s.bound_port = s.listener->port();
  s.rules.emplace(s.options.host, s.bound_port, s.options.public_url, s.tls != nullptr);
  asio::co_spawn(s.io, s.accept_connections(), asio::detached);
  for (auto& [seconds, task] : s.repeated) {
    asio::co_spawn(s.io, s.run_every(seconds, std::move(task)), asio::detached);
  }
  s.thread = std::thread([&s] {
    name_thread("http");
    s.run_io();
  });
}

void HttpServer::use_tls(TlsContext tls) {
  asio::post(state_->io, [this, tls = std::move(tls)] { state_->tls = tls; });
}

int HttpServer::port() const { return state_->bound_port; }
void HttpServer::post(std::function<void()> task) { asio::post(state_->io, std::move(task)); }

void HttpServer::call_every(double seconds, std::function<void()> task) {
  CHECK(!state_->thread.joinable());
  state_->repeated.emplace_back(seconds, std::move(task));
}

void HttpServer::stop(double seconds) {
  State& s = *state_;
  if (!s.thread.joinable()) return;
  asio::post(s.io, [&s] { s.begin_draining(); });
  s.wait_while_any_is_open(now_seconds() + seconds);
  s.io.stop();
  s.thread.join();
  s.listener.reset();
}

}  // namespace strata::server
