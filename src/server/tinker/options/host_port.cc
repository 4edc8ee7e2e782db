// SPDX-License-Identifier: Apache-2.0
// How the text of an option becomes an address.
#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "base/option_values.h"
#include "server/tinker/options/options.h"

namespace strata::server {

bool HostPort::is_loopback() const {
  return !path.empty() || host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string HostPort::text() const {
  return path.empty() ? fmt::format("{}:{}", host, port) : "unix:" + path;
}

namespace {

constexpr std::string_view kUnix = "unix:";

// Nothing for what is none.
std::optional<HostPort> parse_unix_address(const std::string& text) {
  if (text.size() == kUnix.size() || text.find('\0') != std::string::npos) return std::nullopt;
  return HostPort{.host = {}, .port = 0, .path = text.substr(kUnix.size())};
}

// Without the brackets that an address with colons needs.
std::optional<std::string> parse_host(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text.front() == '[' && text.back() == ']') return text.substr(1, text.size() - 2);
  return text.find(':') == std::string::npos ? std::optional(text) : std::nullopt;
}

std::optional<int> parse_port(std::string_view text) {
  int port = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, port);
  const bool whole = error == std::errc{} && rest == end && !text.empty();
  return whole && port >= 0 && port <= 65535 ? std::optional(port) : std::nullopt;
}

std::optional<HostPort> parse_tcp_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    const std::optional<int> alone = parse_port(text);
    return alone ? std::optional(HostPort{.host = "127.0.0.1", .port = *alone}) : std::nullopt;
  }
  const std::optional<std::string> host = parse_host(text.substr(0, colon));
  const std::optional<int> port = parse_port(std::string_view(text).substr(colon + 1));
  if (!host || host->empty() || !port) return std::nullopt;
  return HostPort{.host = *host, .port = *port};
}

}  // namespace

HostPort parse_host_port(const std::string& name, const std::string& text) {
  const std::optional<HostPort> address =
      text.starts_with(kUnix) ? parse_unix_address(text) : parse_tcp_address(text);
  if (!address)
    refuse_value(
        name, text,
        "HOST:PORT like 127.0.0.1:8000 or [::1]:8000, PORT of this machine alone, or unix:PATH");
  return *address;
}

}  // namespace strata::server
