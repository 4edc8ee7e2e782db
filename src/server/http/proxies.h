// SPDX-License-Identifier: Apache-2.0
// Where requests come from: the addresses of peers, and
// TrustedProxies: the proxies whose X-Forwarded-For is believed (--trusted-proxy), and the client
// behind one.
//   TrustedProxies proxies({"10.0.0.0/8", "unix"});
//   const std::string address = remote_peer_address(peer);
//   if (proxies.trusts(peer)) client = proxies.client_address(request.headers, address);
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"

struct sockaddr;

namespace strata::server {

// The address of a peer as text; "" for one of this machine's own.
std::string remote_peer_address(const sockaddr* peer);

class TrustedProxies {
 public:
  TrustedProxies() = default;
  // "10.0.0.0/8", "::1", "fd00::/8": addresses; "unix": whoever connects to a unix socket. Throws
  // Error that names --trusted-proxy.
  explicit TrustedProxies(const std::vector<std::string>& texts);

  [[nodiscard]] bool trusts(const sockaddr* peer) const;

  // The last address of all X-Forwarded-For fields that is no trusted proxy's, as
  // remote_peer_address() shows it; what stands before it may be the client's own
  // invention. `peer` where there is none, or where what a proxy wrote is no address. A port behind
  // an address is left out.
  [[nodiscard]] std::string client_address(const std::vector<Header>& headers,
                                           const std::string& peer) const;

 private:
  using Address = std::array<uint8_t, 16>;  // IPv4 as ::ffff:a.b.c.d
  struct Net {
    Address address;
    int bits;  // of the prefix
    [[nodiscard]] bool contains(const Address& other) const;
  };
  static std::optional<Address> parse_address(std::string_view text);
  static Net parse_net(std::string_view text);
  static std::optional<Address> address_of(const sockaddr* peer);
  // The address as text; "" for loopback.
  static std::string remote_address_text(const Address& address);
  [[nodiscard]] bool trusts(const Address& address) const;

  bool trusts_unix_ = false;
  std::vector<Net> nets_;
};

}  // namespace strata::server
