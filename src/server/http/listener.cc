// SPDX-License-Identifier: Apache-2.0
#include "server/http/listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
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

[[noreturn]] void fail(const ListenAddress& address, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} {}: {}", address.option,
                          address.path.empty() ? fmt::format("{}:{}", address.host, address.port)
                                               : "unix:" + address.path,
                          message));
}

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

AddressList resolve_host(const ListenAddress& address) {
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
  return {found, ::freeaddrinfo};
}

sockaddr_un unix_address(const ListenAddress& address) {
  sockaddr_un where = {};
  where.sun_family = AF_UNIX;
  if (address.path.size() >= sizeof where.sun_path) {
    fail(address, fmt::format("the path has {} bytes, and a socket's may have {}",
                              address.path.size(), sizeof where.sun_path - 1));
  }
  address.path.copy(where.sun_path, address.path.size());
  return where;
}

// Why nobody there can be reached; 0: somebody can.
int find_connect_fault(const ListenAddress& address, const sockaddr_un& where) {
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) fail(address, std::strerror(errno));
  const int answer = ::connect(probe, reinterpret_cast<const sockaddr*>(&where), sizeof where);
  const int fault = answer == 0 ? 0 : errno;
  ::close(probe);
  return fault;
}

// Removes the file of a server that ended without doing so.
void remove_stale_socket(const ListenAddress& address, const sockaddr_un& where) {
  struct stat info;
  if (::lstat(address.path.c_str(), &info) != 0) {
    if (errno == ENOENT) return;
    fail(address, std::strerror(errno));
  }
  if (!S_ISSOCK(info.st_mode)) fail(address, "is there and no socket; give another path");
  const int fault = find_connect_fault(address, where);
  if (fault == 0 || fault == EAGAIN) fail(address, "another server is running there");
  if (fault != ECONNREFUSED) fail(address, std::strerror(fault));
  if (::unlink(address.path.c_str()) != 0 && errno != ENOENT) fail(address, std::strerror(errno));
}

}  // namespace

Listener::Listener(const ListenAddress& address) {
  if (address.path.empty())
    listen_on_tcp(address);
  else
    listen_on_unix_socket(address);
}

void Listener::listen_on_tcp(const ListenAddress& address) {
  const AddressList found = resolve_host(address);
  open_socket(address, found->ai_addr, found->ai_addrlen);
  port_ = port_of(socket_);
}

void Listener::listen_on_unix_socket(const ListenAddress& address) {
  const sockaddr_un where = unix_address(address);
  remove_stale_socket(address, where);
  open_socket(address, reinterpret_cast<const sockaddr*>(&where), sizeof where);
  claim_socket_file(address);
}

void Listener::claim_socket_file(const ListenAddress& address) {
  struct stat info;
  // The mode is narrow from the first moment; what the umask took from it is given back here.
  const bool is_ours =
      ::chmod(address.path.c_str(), address.mode) == 0 && ::lstat(address.path.c_str(), &info) == 0;
  if (!is_ours) {
    const int fault = errno;
    ::close(socket_);
    socket_ = -1;
    fail(address, std::strerror(fault));
  }
  path_ = address.path;
  device_ = info.st_dev;
  inode_ = info.st_ino;
}

void Listener::open_socket(const ListenAddress& address, const sockaddr* where, unsigned size) {
  family_ = where->sa_family;
  socket_ = ::socket(family_, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  const bool listens = socket_ >= 0 &&
                       ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                       (family_ != AF_UNIX || ::fchmod(socket_, address.mode) == 0) &&
                       ::bind(socket_, where, size) == 0 && ::listen(socket_, SOMAXCONN) == 0;
  if (listens) return;
  const int fault = errno;
  if (socket_ >= 0) ::close(socket_);
  fail(address, fmt::format("{}{}", std::strerror(fault),
                            fault == EADDRINUSE ? "; is another server running there?" : ""));
}

Listener::~Listener() {
  if (socket_ >= 0) ::close(socket_);
  struct stat info;
  // Another server's by now, perhaps.
  if (path_.empty() || ::lstat(path_.c_str(), &info) != 0) return;
  if (info.st_dev == device_ && info.st_ino == inode_) ::unlink(path_.c_str());
}

int Listener::take() {
  CHECK(socket_ >= 0);
  return std::exchange(socket_, -1);
}

}  // namespace strata::server
