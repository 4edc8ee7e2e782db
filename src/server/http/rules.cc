// SPDX-License-Identifier: Apache-2.0
#include "server/http/rules.h"

#include "base/error.h"

namespace strata::server {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

struct Authority {
  std::string host;
  std::string port;
};

// "[::1]:80", "::1" (never in a Host header, but in --listen), "name:80", "name".
Authority split(std::string_view text) {
  const size_t bracket = text.find(']');
  const size_t colon = text.rfind(':');
  const bool has_port =
      colon != std::string_view::npos &&
      (bracket == std::string_view::npos ? text.find(':') == colon : colon > bracket);
  std::string host = lower(text.substr(0, has_port ? colon : text.size()));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return {host, has_port ? std::string(text.substr(colon + 1)) : std::string()};
}

bool is_digits(std::string_view text) {
  return text.find_first_not_of("0123456789") == std::string_view::npos;
}

// localhost, 127.x.y.z and ::1, never a name that merely starts like one.
bool is_loopback(std::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  return host.starts_with("127.") &&
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

AddressRules::AddressRules(std::string listen_host, int port, const std::string& public_url,
                           bool is_secured)
    : listen_host_(split(listen_host).host),
      port_(port),
      is_secured_(is_secured),
      public_url_(public_url) {
  if (public_url.empty()) return;
  const size_t scheme = public_url.find("://");
  if (scheme == std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                "--public-url: got '" + public_url + "', wanted http://... or https://...");
  }
  const size_t slash = public_url.find('/', scheme + 3);
  public_authority_ = lower(public_url.substr(scheme + 3, slash - scheme - 3));
  if (slash != std::string::npos) public_path_ = public_url.substr(slash);
  while (!public_path_.empty() && public_path_.back() == '/') public_path_.pop_back();
  while (!public_url_.empty() && public_url_.back() == '/') public_url_.pop_back();
}

bool AddressRules::knows_host(std::string_view host) const {
  if (host.empty() || host.size() > 300) return false;
  const Authority got = split(host);
  if (!is_digits(got.port)) return false;
  if (!public_authority_.empty() &&
      (lower(host) == public_authority_ || got.host == public_authority_)) {
    return true;
  }
  if (is_loopback(got.host)) return true;
  return !got.host.empty() && got.host == listen_host_ &&
         (got.port.empty() || got.port == std::to_string(port_));
}

bool AddressRules::origin_fits(std::string_view origin, std::string_view host) {
  if (origin.empty()) return true;
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;
  return lower(origin.substr(scheme + 3)) == lower(host);
}

std::string AddressRules::base_url(std::string_view host) const {
  if (!public_url_.empty()) return public_url_;
  return (is_secured_ ? "https://" : "http://") + std::string(host);
}

std::string_view AddressRules::without_prefix(std::string_view path) const {
  if (public_path_.empty() || !path.starts_with(public_path_)) return path;
  const std::string_view rest = path.substr(public_path_.size());
  return rest.empty() || rest.front() == '/' ? rest : path;
}

std::optional<std::string> decode_path(std::string_view path) {
  std::string out;
  out.reserve(path.size());
  for (size_t i = 0; i < path.size(); ++i) {
    char c = path[i];
    if (c == '%') {
      if (i + 2 >= path.size()) return std::nullopt;
      const int high = hex_value(path[i + 1]);
      const int low = hex_value(path[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return std::nullopt;
    out += c;
  }
  return out;
}

}  // namespace strata::server
