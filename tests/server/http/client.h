// SPDX-License-Identifier: Apache-2.0
// A client of HttpServer over a real socket, too simple to hide anything.
#pragma once
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"

namespace strata::server {

// The first whole response of what has arrived, which then goes from there.
inline std::optional<std::string> take_response(std::string& arrived) {
  const size_t head = arrived.find("\r\n\r\n");
  if (head == std::string::npos) return std::nullopt;
  const size_t at = arrived.find("Content-Length: ");
  const size_t length = at < head ? std::stoul(arrived.substr(at + 16)) : 0;
  if (arrived.size() < head + 4 + length) return std::nullopt;
  std::string whole = arrived.substr(0, head + 4 + length);
  arrived.erase(0, whole.size());
  return whole;
}

class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  // Of a unix socket.
  explicit Client(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Client() { ::close(socket_); }

  // It writes no more, and reads on.
  void end_writing() const { ::shutdown(socket_, SHUT_WR); }

  bool send(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t count = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      text.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }
  // One whole response, or what there was until the end or `seconds`.
  std::string read(double seconds = 5.0) {
    const double end = now_seconds() + seconds;
    for (;;) {
      if (auto whole = take_response(rest_)) return *whole;
      pollfd wanted = {socket_, POLLIN, 0};
      const int left = static_cast<int>((end - now_seconds()) * 1000);
      if (left <= 0 || ::poll(&wanted, 1, left) <= 0) return rest_;
      char chunk[4096];
      const ssize_t count = ::recv(socket_, chunk, sizeof chunk, 0);
      if (count <= 0) return rest_;
      rest_.append(chunk, static_cast<size_t>(count));
    }
  }
  // All that has arrived and was not read, `seconds` later.
  const std::string& peek(double seconds) {
    pollfd wanted = {socket_, POLLIN, 0};
    if (::poll(&wanted, 1, static_cast<int>(seconds * 1000)) <= 0) return rest_;
    char chunk[4096];
    const ssize_t count = ::recv(socket_, chunk, sizeof chunk, 0);
    if (count > 0) rest_.append(chunk, static_cast<size_t>(count));
    return rest_;
  }
  void forget() { rest_.clear(); }
  // How many bytes arrive when at most 512 KiB are taken every 30 ms.
  [[nodiscard]] size_t read_slowly() const {
    std::string buffer(512 << 10, ' ');
    size_t all = 0;
    for (;;) {
      const ssize_t count = ::recv(socket_, buffer.data(), buffer.size(), MSG_WAITALL);
      if (count <= 0) return all;
      all += static_cast<size_t>(count);
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
  }
  // Whether the server closes the connection within the time.
  [[nodiscard]] bool closes(double seconds) const {
    pollfd wanted = {socket_, POLLIN, 0};
    if (::poll(&wanted, 1, static_cast<int>(seconds * 1000)) <= 0) return false;
    char byte = 0;
    return ::recv(socket_, &byte, 1, 0) == 0;
  }

 private:
  int socket_;
  std::string rest_;
};

inline std::string status(const std::string& response) { return response.substr(9, 3); }
inline std::string body(const std::string& response) {
  return response.substr(response.find("\r\n\r\n") + 4);
}

}  // namespace strata::server
