// Listener: a socket that listens at an address, made with the system's own calls; whoever accepts
// takes it.
#pragma once
#include <string>

struct sockaddr;

namespace strata::server {

struct ListenAddress {
  const char* option = "--listen";  // what to call the address in a fault
  std::string host;
  int port = 0;  // 0: any free one
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
  [[nodiscard]] int family() const { return family_; }  // AF_INET, AF_INET6
  [[nodiscard]] int port() const { return port_; }

 private:
  void listen_at(const ListenAddress& address, const sockaddr* where, unsigned size);

  int socket_ = -1;
  int family_ = 0;
  int port_ = 0;
};

// The address of a peer as text; "" for one of this machine's own.
std::string peer_address(const sockaddr* peer);

}  // namespace strata::server
