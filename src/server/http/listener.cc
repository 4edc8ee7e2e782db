#include "server/http/listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace strata::server {
namespace {

int port_of(int socket) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  if (bound.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

}  // namespace

Listener::Listener(const ListenAddress& address) {
  addrinfo wanted = {};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int fault =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &found);
  if (fault != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' is no address: {}", address.option, address.host,
                            ::gai_strerror(fault)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> hold(found, ::freeaddrinfo);
  listen_at(address, found->ai_addr, found->ai_addrlen);
  port_ = port_of(socket_);
}

void Listener::listen_at(const ListenAddress& address, const sockaddr* where, unsigned size) {
  family_ = where->sa_family;
  socket_ = ::socket(family_, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  const bool listens = socket_ >= 0 &&
                       ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                       ::bind(socket_, where, size) == 0 && ::listen(socket_, SOMAXCONN) == 0;
  if (listens) return;
  const int fault = errno;
  if (socket_ >= 0) ::close(socket_);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} {}:{}: {}; is another server running there?", address.option,
                          address.host, address.port, std::strerror(fault)));
}

Listener::~Listener() {
  if (socket_ >= 0) ::close(socket_);
}

int Listener::take() {
  CHECK(socket_ >= 0);
  return std::exchange(socket_, -1);
}

std::string peer_address(const sockaddr* peer) {
  char text[INET6_ADDRSTRLEN] = "";
  if (peer->sa_family == AF_INET) {
    const in_addr& address = reinterpret_cast<const sockaddr_in*>(peer)->sin_addr;
    if (ntohl(address.s_addr) >> 24 == 127) return "";
    ::inet_ntop(AF_INET, &address, text, sizeof text);
  } else if (peer->sa_family == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(peer)->sin6_addr;
    if (IN6_IS_ADDR_LOOPBACK(&address)) return "";
    ::inet_ntop(AF_INET6, &address, text, sizeof text);
  }
  return text;
}

}  // namespace strata::server
