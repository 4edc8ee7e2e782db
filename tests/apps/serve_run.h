// SPDX-License-Identifier: Apache-2.0
// The program as a server on a port of its own, and requests to it.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/json.hpp>
#include <memory>

#include "tests/apps/program.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {

// A socket at this port of 127.0.0.1, listening or connected; 0: any free one.
class Socket {
 public:
  Socket(int port, bool listens) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    address_.sin_family = AF_INET;
    address_.sin_port = htons(static_cast<uint16_t>(port));
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* where = reinterpret_cast<sockaddr*>(&address_);
    is_open_ = listens ? ::bind(fd_, where, sizeof(address_)) == 0 && ::listen(fd_, 1) == 0
                       : ::connect(fd_, where, sizeof(address_)) == 0;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { ::close(fd_); }
  [[nodiscard]] bool is_open() const { return is_open_; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
  sockaddr_in address_ = {};
  bool is_open_ = false;
};

struct Reply {
  int status = 0;
  std::string body;
};

// Without a body GET, else POST.
inline Reply ask(int port, const std::string& path, const std::string& body = "",
                 const std::string& key = "tml-any") {
  const Socket socket(port, /*listens=*/false);
  std::string text = (body.empty() ? "GET " : "POST ") + path +
                     " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) +
                     "\r\nX-API-Key: " + key + "\r\nConnection: close\r\n";
  if (!body.empty()) {
    text +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  text += "\r\n" + body;
  EXPECT_EQ(::send(socket.fd(), text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  std::string answer;
  char bytes[4096];
  for (ssize_t count; (count = ::recv(socket.fd(), bytes, sizeof(bytes), 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(count));
  const size_t head_end = answer.find("\r\n\r\n");
  if (head_end == std::string::npos) return {};
  return {.status = std::atoi(answer.c_str() + 9), .body = answer.substr(head_end + 4)};
}

inline boost::json::object object_of(const Reply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  boost::json::error_code error;
  const boost::json::value value = boost::json::parse(reply.body, error);
  return value.is_object() ? value.get_object() : boost::json::object{};
}

class ServeStartTest : public TrainTest {
 protected:
  // Started in the test's folder, where a short command line puts its data.
  std::unique_ptr<Process> serve(const Words& more, const std::string& until = " GiB at most") {
    Words args = {"serve", "--memory", "2GiB", "--threads", "1"};
    args.insert(args.end(), more.begin(), more.end());
    auto process = std::make_unique<Process>(args, "", Words{"PWD=" + root_});
    EXPECT_TRUE(process->await(until)) << process->out() << process->err();
    return process;
  }
  static int port_of(const std::string& out,
                     const std::string& of = "listening on http://127.0.0.1:") {
    const size_t at = out.find(of);
    return at == std::string::npos ? 0 : std::atoi(out.c_str() + at + of.size());
  }
  static int end(Process& process, int signal = SIGINT) {
    process.signal(signal);
    return process.wait().code;
  }
  [[nodiscard]] Words named(const Words& more = {}) const {
    Words args = {"--model",       "tiny=" + model(), "--no-keys",  "--data",
                  root_ + "/data", "--listen",        "127.0.0.1:0"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
};

}  // namespace strata::apps
