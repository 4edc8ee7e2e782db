// SPDX-License-Identifier: Apache-2.0
// HttpClient: many HTTP/1.1 requests to one server at once on one thread: keep-alive connections,
// epoll, and next to no CPU. For benchmarks; loopback only. Responses must carry Content-Length, as
// ours do.
//   client.send(bytes, [](int status, std::string_view body) { ... });  client.run_until(when);
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

class HttpClient {
 public:
  // status 0: the connection broke before an answer.
  using Done = std::function<void(int status, std::string_view body)>;

  explicit HttpClient(int port);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void send(std::string request, Done done);
  // Handles answers until now_seconds() is `when`.
  void run_until(double when);
  [[nodiscard]] int64_t num_waiting() const { return waiting_; }

 private:
  struct Connection {
    int fd = -1;
    std::string out, in;
    size_t written = 0;
    Done done;
  };
  int connect_new();
  void flush(Connection& connection);
  void read(Connection& connection);
  void finish(Connection& connection, int status, std::string_view body, bool keep);

  int port_;
  int epoll_;
  int64_t waiting_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;  // by descriptor
  std::vector<int> idle_;
};

// The text of a request with this server's headers.
std::string http_request(std::string_view method, std::string_view path, std::string_view key,
                         std::string_view content_type, std::string_view body);

}  // namespace strata
