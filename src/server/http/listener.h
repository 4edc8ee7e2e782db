// SPDX-License-Identifier: Apache-2.0
// Listener: a socket that listens at an address, TCP or a file's, made with the system's own calls;
// whoever accepts takes it. The file of a server that is gone is replaced, that of one that answers
// is not, and what is no socket is never touched. The end of the Listener removes its file.
#pragma once
#include <cstdint>
#include <string>

struct sockaddr;

namespace strata::server {

struct ListenAddress {
  const char* option = "--listen";  // what to call the address in a fault
  std::string host;
  int port = 0;           // 0: any free one
  std::string path = {};  // of a socket's file; then neither host nor port
  unsigned mode = 0600;   // of that file
};

class Listener {
 public:
  // Binds and listens. Throws Error when the address cannot be had.
  explicit Listener(const ListenAddress& address);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The socket, which is the caller's from now on; once.
  [[nodiscard]] int take();
  [[nodiscard]] int family() const { return family_; }  // AF_INET, AF_INET6, AF_UNIX
  [[nodiscard]] int port() const { return port_; }

 private:
  void listen_on_tcp(const ListenAddress& address);
  void listen_on_unix_socket(const ListenAddress& address);
  // Sets the mode of the socket's file, and notes which file it is.
  void claim_socket_file(const ListenAddress& address);
  // Opens the socket, binds it and listens; Error where that fails.
  void open_socket(const ListenAddress& address, const sockaddr* where, unsigned size);

  int socket_ = -1;
  int family_ = 0;
  int port_ = 0;
  std::string path_;  // of our file, to be removed
  uint64_t device_ = 0, inode_ = 0;
};

}  // namespace strata::server
