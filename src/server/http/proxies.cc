// SPDX-License-Identifier: Apache-2.0
#include "server/http/proxies.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>

#include "base/ascii.h"
#include "base/error.h"

namespace strata::server {
namespace {

constexpr int kAllBits = 128;
constexpr int kMappedBits = 96;  // before the 32 of an IPv4 address

[[noreturn]] void throw_invalid_proxy(std::string_view text) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--trusted-proxy: got '{}', want an address, a network like 10.0.0.0/8 "
                          "or fd00::/8, or unix",
                          text));
}

// "1.2.3.4:80", "[::1]:80" and "[::1]" without port and brackets.
std::string_view bare_address(std::string_view text) {
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    const bool is_whole = end + 1 == text.size() || text.substr(end + 1).starts_with(':');
    return end != std::string_view::npos && is_whole ? text.substr(1, end - 1) : "";
  }
  const size_t colon = text.find(':');
  return colon == text.rfind(':') ? text.substr(0, colon) : text;
}

// Takes what stands behind the last comma of `list`, which ends before that comma then.
std::string_view take_last_of_list(std::string_view& list) {
  const size_t comma = list.rfind(',');
  const size_t begin = comma == std::string_view::npos ? 0 : comma + 1;
  const std::string_view last = list.substr(begin);
  list = list.substr(0, begin == 0 ? 0 : comma);
  return last;
}

// The bits of a prefix, of an address of `most` bits; -1 where that is no number of them.
int parse_prefix_length(std::string_view text, int most) {
  int bits = -1;
  const char* end = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), end, bits);
  return fault == std::errc{} && rest == end && bits >= 0 && bits <= most ? bits : -1;
}

}  // namespace

std::optional<TrustedProxies::Address> TrustedProxies::parse_address(std::string_view text) {
  const std::string whole(text);
  if (whole.find('\0') != std::string::npos) return std::nullopt;
  Address out{};
  if (::inet_pton(AF_INET6, whole.c_str(), out.data()) == 1) return out;
  out = {};
  out[10] = out[11] = 0xFF;
  if (::inet_pton(AF_INET, whole.c_str(), out.data() + 12) == 1) return out;
  return std::nullopt;
}

std::string TrustedProxies::remote_address_text(const Address& address) {
  sockaddr_in6 peer{};
  peer.sin6_family = AF_INET6;
  std::copy(address.begin(), address.end(), peer.sin6_addr.s6_addr);
  if (!IN6_IS_ADDR_V4MAPPED(&peer.sin6_addr)) {
    return remote_peer_address(reinterpret_cast<const sockaddr*>(&peer));
  }
  sockaddr_in mapped{};
  mapped.sin_family = AF_INET;
  std::copy(address.begin() + 12, address.end(), reinterpret_cast<uint8_t*>(&mapped.sin_addr));
  return remote_peer_address(reinterpret_cast<const sockaddr*>(&mapped));
}

std::string remote_peer_address(const sockaddr* peer) {
  char text[INET6_ADDRSTRLEN] = "";
  if (peer->sa_family == AF_INET) {
    const in_addr& address = reinterpret_cast<const sockaddr_in*>(peer)->sin_addr;
    if (ntohl(address.s_addr) >> 24 == 127) return "";
    ::inet_ntop(AF_INET, &address, text, sizeof text);
  } else if (peer->sa_family == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(peer)->sin6_addr;
    if (IN6_IS_ADDR_LOOPBACK(&address)) return "";
    // A dual-stack listener shows IPv4 peers so.
    if (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127) return "";
    ::inet_ntop(AF_INET6, &address, text, sizeof text);
  }
  return text;
}

TrustedProxies::TrustedProxies(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    if (text == "unix") {
      trusts_unix_ = true;
      continue;
    }
    nets_.push_back(parse_net(text));
  }
}

TrustedProxies::Net TrustedProxies::parse_net(std::string_view text) {
  const size_t slash = std::min(text.find('/'), text.size());
  const std::string_view host = text.substr(0, slash);
  const std::optional<Address> address = parse_address(host);
  if (!address) throw_invalid_proxy(text);
  const bool is_ipv4 = host.find(':') == std::string_view::npos;
  const int first = is_ipv4 ? kMappedBits : 0;
  int bits = kAllBits - first;
  if (slash < text.size()) bits = parse_prefix_length(text.substr(slash + 1), bits);
  if (bits < 0) throw_invalid_proxy(text);
  return {*address, first + bits};
}

bool TrustedProxies::Net::contains(const Address& other) const {
  const size_t bytes = static_cast<size_t>(bits) / 8;
  if (!std::equal(other.begin(), other.begin() + bytes, address.begin())) return false;
  const int rest = bits % 8;
  return rest == 0 || (other[bytes] ^ address[bytes]) >> (8 - rest) == 0;
}

bool TrustedProxies::trusts(const Address& address) const {
  return std::any_of(nets_.begin(), nets_.end(),
                     [&](const Net& net) { return net.contains(address); });
}

std::optional<TrustedProxies::Address> TrustedProxies::address_of(const sockaddr* peer) {
  Address address{};
  if (peer->sa_family == AF_INET6) {
    const auto& from = reinterpret_cast<const sockaddr_in6*>(peer)->sin6_addr.s6_addr;
    std::copy(std::begin(from), std::end(from), address.begin());
  } else if (peer->sa_family == AF_INET) {
    address[10] = address[11] = 0xFF;
    const auto* from =
        reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in*>(peer)->sin_addr);
    std::copy(from, from + 4, address.begin() + 12);
  } else {
    return std::nullopt;
  }
  return address;
}

bool TrustedProxies::trusts(const sockaddr* peer) const {
  if (peer->sa_family == AF_UNIX) return trusts_unix_;
  const std::optional<Address> address = address_of(peer);
  return address && trusts(*address);
}

std::string TrustedProxies::client_address(const std::vector<Header>& headers,
                                           const std::string& peer) const {
  std::string nearest = peer;
  for (auto header = headers.rbegin(); header != headers.rend(); ++header) {
    if (header->name != "x-forwarded-for") continue;
    for (std::string_view left = header->value; !left.empty();) {
      const auto address = parse_address(bare_address(trimmed(take_last_of_list(left), " \t")));
      if (!address) return nearest;
      nearest = remote_address_text(*address);
      if (!trusts(*address)) return nearest;
    }
  }
  return nearest;
}

}  // namespace strata::server
