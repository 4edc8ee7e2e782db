// SPDX-License-Identifier: Apache-2.0
// HttpServer: HTTP/1.1 on one thread. It reads requests (bounded, with deadlines, zstd bodies
// decompressed), applies the rules of hosts, origins and keys, hands them to the router, and writes
// responses; a parked poll costs a socket and a few kilobytes (with TLS some 40), never a thread.
// Everything of the server that has state runs on this thread: handlers, what post() is given, and
// what call_every() repeats. A fault before the body has been read is answered and the connection
// closed.
//   HttpServer http(options, std::move(router), identify);  http.start();  ...  http.stop(2.0);
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/account.h"
#include "server/http/proxies.h"
#include "server/http/router.h"
#include "server/http/tls.h"

namespace strata::server {

// What a connection takes but for its header (tests/server/http measures it): what it is and what
// waits for its bytes; with TLS a session, and its records on their way in and out.
constexpr int64_t connection_bytes(bool is_secured) { return is_secured ? 112 << 10 : 12 << 10; }

struct HttpOptions {
  const char* option = "--listen";  // what to call the address in a fault
  std::string host = "127.0.0.1";
  int port = 0;             // 0: any free one
  std::string socket_path;  // of a unix socket, instead of host and port
  unsigned socket_mode = 0600;
  TlsFiles tls;                // empty: in the clear
  std::string public_url;      // without a slash at its end, or empty
  double header_timeout = 10;  // seconds
  double body_timeout = 30;    // without progress
  double keepalive = 120;
  // The most bytes of one body, before and after decompression: of data, of a sample, of others.
  uint64_t max_body = 64ULL << 20;
  uint64_t max_sample_body = 16ULL << 20;
  uint64_t max_small_body = 128ULL << 10;
  // What requests may hold, by tenant: of connections, bodies, responses and downloads.
  Accounts accounts;
  double min_body_rate = 8192;  // bytes a second, after the first body_timeout
  // Files that are being sent: how many of a tenant at once, and the least rate of any response, as
  // of bodies. Above: 429; too slow: the connection is closed.
  int64_t max_downloads_per_tenant = 1000;
  double min_download_rate = 8192;
  // Runs what reads from a disk, for a tenant, on another thread, or drops it when the server
  // stops. Null: it is run here.
  std::function<void(const std::string& tenant, std::function<void()> read)> read_aside = {};
  // Gives a refusal the form that the path's clients know. Null: all have one form.
  std::function<void(std::string_view path, Response& refusal)> put_in_form = {};
  int64_t max_connections = 10000;
  int64_t max_connections_per_address = 5000;  // but for loopback addresses and unix sockets
  TrustedProxies proxies;  // have no limit themselves; each of their clients has
  // Bytes of all connections, whoever's they are, half of them of one address at most. Above: 503.
  SharedLimit connections = SharedLimit(1LL << 30);
  int64_t max_handshakes =
      512;  // unfinished; of more, the oldest of the address with the most ends
};

struct Caller {
  std::string tenant;
  bool is_admin = false;
  Scope scope = Scope::kAll;
  std::string key_id = {};
  bool has_expired = false;  // then it may do nothing
};
// Whose key this is; nobody for a wrong one.
using Identify = std::function<std::optional<Caller>(std::string_view key)>;

// Called for each request whose key is good, before its body is read: the refusal of one that its
// tenant may not make now. I/O thread.
using Admit = std::function<std::optional<Response>(const Request&)>;

// Called on the I/O thread after each response, for metrics and the audit log.
struct Exchange {
  std::string method;
  std::string path;
  std::string_view route = "other";  // its pattern, where there is one
  Effect effect = Effect::kReads;
  std::string tenant;  // empty when no key was needed, or it was refused
  std::string key_id;
  std::string address;                 // Request::address
  std::shared_ptr<std::string> about;  // Request::note
  int status = 0;
  double seconds = 0;
};
using Observe = std::function<void(const Exchange&)>;

class HttpServer {
 public:
  // `identify` is null where no route wants a key; CHECKed.
  HttpServer(const HttpOptions& options, Router router, Identify identify, Observe observe = {},
             Admit admit = {});
  ~HttpServer();  // stops at once if still running
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Listens and starts the thread. Throws Error when the address cannot be had.
  void start();
  [[nodiscard]] int port() const;

  // Any thread: runs `task` on the I/O thread, soon.
  void post(std::function<void()> task);
  // Before start(): runs `task` on the I/O thread every `seconds`.
  void call_every(double seconds, std::function<void()> task);

  // Any thread, after start(): the certificate and the key of connections from now on.
  void use_tls(TlsContext tls);

  // Stops listening, closes idle connections, gives running exchanges `seconds` to end, and joins.
  void stop(double seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strata::server
