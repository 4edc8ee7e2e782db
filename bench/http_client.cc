// SPDX-License-Identifier: Apache-2.0
#include "bench/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/check.h"
#include "base/clock.h"

namespace strata {

HttpClient::HttpClient(int port) : port_(port), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  CHECK(epoll_ >= 0, errno);
}

HttpClient::~HttpClient() {
  for (const auto& connection : connections_) {
    if (connection != nullptr && connection->fd >= 0) close(connection->fd);
  }
  close(epoll_);
}

int HttpClient::connect_new() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(fd >= 0, errno);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, port_, errno);
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.fd = fd;
  CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0, errno);
  if (connections_.size() <= static_cast<size_t>(fd)) {
    connections_.resize(static_cast<size_t>(fd) + 1);
  }
  auto& slot = connections_[static_cast<size_t>(fd)];
  slot = std::make_unique<Connection>();
  slot->fd = fd;
  return fd;
}

void HttpClient::send(std::string request, Done done) {
  int fd = -1;
  if (idle_.empty()) {
    fd = connect_new();
  } else {
    fd = idle_.back();
    idle_.pop_back();
  }
  Connection& connection = *connections_[static_cast<size_t>(fd)];
  connection.out = std::move(request);
  connection.written = 0;
  connection.in.clear();
  connection.done = std::move(done);
  ++waiting_;
  flush(connection);
}

// Requests are small and the receiver is near: what does not fit the socket is written at once too.
void HttpClient::flush(Connection& c) {
  while (c.written < c.out.size()) {
    const ssize_t n =
        ::send(c.fd, c.out.data() + c.written, c.out.size() - c.written, MSG_NOSIGNAL);
    if (n <= 0) return finish(c, 0, {}, false);
    c.written += static_cast<size_t>(n);
  }
}

void HttpClient::finish(Connection& c, int status, std::string_view body, bool keep) {
  const Done done = std::move(c.done);
  const int fd = c.fd;
  const std::string text(body);
  c.done = nullptr;
  if (keep) {
    idle_.push_back(fd);
  } else {
    std::erase(idle_, fd);
    close(fd);
    c.fd = -1;
  }
  if (!done) return;
  --waiting_;
  done(status, text);
}

void HttpClient::read(Connection& c) {
  char buffer[16384];
  const ssize_t n = recv(c.fd, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return finish(c, 0, {}, false);
  c.in.append(buffer, static_cast<size_t>(n));
  const size_t head = c.in.find("\r\n\r\n");
  if (head == std::string::npos) return;
  const size_t field = c.in.find("Content-Length: ");
  const size_t length = field < head ? std::strtoull(c.in.c_str() + field + 16, nullptr, 10) : 0;
  if (c.in.size() < head + 4 + length) return;
  const int status = std::atoi(c.in.c_str() + 9);
  const bool keep = c.in.find("Connection: close") > head;
  finish(c, status, std::string_view(c.in).substr(head + 4, length), keep);
}

void HttpClient::run_until(double when) {
  epoll_event events[256];
  do {
    const double left = std::max(0.0, when - now_seconds());
    const int count = epoll_wait(epoll_, events, 256, static_cast<int>(left * 1e3));
    for (int i = 0; i < count; ++i) {
      Connection& c = *connections_[static_cast<size_t>(events[i].data.fd)];
      if (c.fd >= 0) read(c);
    }
  } while (now_seconds() < when);
}

std::string http_request(std::string_view method, std::string_view path, std::string_view key,
                         std::string_view content_type, std::string_view body) {
  std::string out =
      fmt::format("{} {} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {}\r\nContent-Length: {}\r\n",
                  method, path, key, body.size());
  if (!content_type.empty()) out += fmt::format("Content-Type: {}\r\n", content_type);
  return out + "\r\n" + std::string(body);
}

}  // namespace strata
