// SPDX-License-Identifier: Apache-2.0
#include "server/http/request_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ascii.h"
#include "base/error.h"
#include "server/http/refusals.h"

namespace strata::server {
namespace {

bool is_scheme(std::string_view text) { return lower(text) == "http" || lower(text) == "https"; }

struct Authority {
  std::string host;
  std::string port;
};

// "[::1]:80", "::1" (never in a Host header, but in --listen), "name:80", "name".
Authority split_authority(std::string_view text) {
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

struct UrlParts {
  std::string scheme, authority, path;
};

UrlParts split_public_url(const std::string& url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                "--public-url: got '" + url + "', wanted http://... or https://...");
  }
  const size_t slash = std::min(url.find('/', scheme + 3), url.size());
  return {url.substr(0, scheme), url.substr(scheme + 3, slash - scheme - 3), url.substr(slash)};
}

void remove_trailing_slashes(std::string& text) {
  while (!text.empty() && text.back() == '/') text.pop_back();
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

struct Framing {
  unsigned version = 11;    // 10 * major + minor
  bool is_chunked = false;  // as the parser understands it
};

// Takes scheme and authority off a target in absolute form ("http://host/path", RFC 9112, 3.2.2);
// the authority takes the place of the Host header.
void move_authority_to_host(std::string_view& target, std::vector<Header>& headers) {
  const size_t colon = target.find("://");
  if (colon == std::string_view::npos || !is_scheme(target.substr(0, colon))) return;
  const size_t begin = colon + 3;
  const size_t end = std::min(target.find_first_of("/?", begin), target.size());
  for (Header& header : headers) {
    if (header.name == "host") header.value = std::string(target.substr(begin, end - begin));
  }
  target = end < target.size() && target[end] == '/' ? target.substr(end) : "/";
}

// The refusal, or nothing. Names of headers in lower case.
std::optional<Response> check_unique_headers(const std::vector<Header>& headers) {
  // Where there are two of one, a proxy may have believed the other (RFC 9112, 3.2).
  for (const std::string_view name : {"host", "x-api-key", "authorization", "content-length",
                                      "content-type", "content-encoding"}) {
    const auto is_this = [&](const Header& header) { return header.name == name; };
    if (std::ranges::count_if(headers, is_this) > 1)
      return error_response(400, fmt::format("{}: this header stands there twice", name));
  }
  return std::nullopt;
}

std::optional<Response> check_framing(const Framing& framing, const std::vector<Header>& headers) {
  if (std::optional<Response> refused = check_unique_headers(headers)) return refused;
  int codings = 0;
  bool has_length = false;
  for (const Header& header : headers) {
    if (header.name == "content-length") {
      has_length = true;
      if (header.value.find(',') != std::string::npos)
        return error_response(400, "Content-Length: has several numbers, wanted one");
    }
    if (header.name != "transfer-encoding") continue;
    ++codings;
    if (lower(header.value) == "chunked" && framing.is_chunked && codings == 1) continue;
    return error_response(400, fmt::format("Transfer-Encoding: got '{}', wanted 'chunked' alone "
                                           "and once, or Content-Length instead",
                                           percent_escaped(header.value).substr(0, 100)));
  }
  if (codings > 0 && has_length) {
    return error_response(400, "Transfer-Encoding and Content-Length exclude each other");
  }
  if (codings > 0 && framing.version < 11) {
    return error_response(400, "Transfer-Encoding: HTTP/1.0 has none; want Content-Length");
  }
  return std::nullopt;
}

}  // namespace

AddressRules::AddressRules(std::string listen_host, int port, const std::string& public_url,
                           bool is_secured)
    : listen_host_(split_authority(listen_host).host),
      port_(port),
      is_secured_(is_secured),
      public_url_(public_url) {
  if (public_url.empty()) return;
  const UrlParts parts = split_public_url(public_url);
  const Authority named = split_authority(parts.authority);
  public_host_ = named.host;
  public_port_ = named.port;
  is_default_port_ = public_port_ == (lower(parts.scheme) == "https" ? "443" : "80");
  public_path_ = parts.path;
  remove_trailing_slashes(public_path_);
  remove_trailing_slashes(public_url_);
}

bool AddressRules::is_own_host(std::string_view host) const {
  if (host.empty() || host.size() > 300) return false;
  const Authority got = split_authority(host);
  if (!is_digits(got.port)) return false;
  const bool fits =
      public_port_.empty() || got.port == public_port_ || (got.port.empty() && is_default_port_);
  if (!public_host_.empty() && got.host == public_host_ && fits) return true;
  if (is_loopback(got.host)) return true;
  return !got.host.empty() && got.host == listen_host_ &&
         (got.port.empty() || got.port == std::to_string(port_));
}

bool AddressRules::origin_matches_host(std::string_view origin, std::string_view host) {
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

namespace {

// A body that is parsed on the I/O thread, and that no rate meters: a sign of life, a poll.
constexpr uint64_t kTinyBody = 16 << 10;  // half a millisecond of parsing
constexpr uint64_t kUnreadBody = 1 << 20;

}  // namespace

BodyLimit body_limit(const HttpOptions& options, const Route* route) {
  BodySize size = route == nullptr ? BodySize::kSmall : route->size;
  if (route != nullptr && route->body == BodyKind::kNone && size != BodySize::kUnread) {
    if (route->method != "POST" || !route->needs_key) return {0, "it reads none"};
    size = BodySize::kTiny;  // clients post {}
  }
  switch (size) {
    case BodySize::kData:
      return {options.max_body, "--max-body", true};
    case BodySize::kSample:
      return {std::min(options.max_sample_body, options.max_body), "--max-sample-body", true};
    case BodySize::kTiny:
      return {std::min(kTinyBody, options.max_body), "a name or two"};
    case BodySize::kUnread:
      return {std::min(kUnreadBody, options.max_body), "nobody reads it"};
    case BodySize::kSmall:
      break;
  }
  return {std::min(options.max_small_body, options.max_body), "--max-small-body"};
}

namespace {

// X-API-Key, or the token of Authorization: Bearer.
std::string_view presented_key(const Request& request) {
  const std::string_view key = request.header("x-api-key");
  if (!key.empty()) return key;
  constexpr std::string_view kBearer = "bearer ";
  std::string_view given = request.header("authorization");
  if (lower(given.substr(0, kBearer.size())) != kBearer) return {};
  given.remove_prefix(std::min(given.find_first_not_of(' ', kBearer.size()), given.size()));
  return given;
}

// What a header says of the body behind it.
struct AnnouncedBody {
  uint64_t length = 0;
  bool is_chunked = false;  // then its length is not known
};

AnnouncedBody announced_body(const BodyParser& parser) {
  const auto length = parser.content_length();
  return {length ? *length : 0, parser.chunked()};
}

std::string text_of(boost::beast::string_view view) { return {view.data(), view.size()}; }

std::optional<Response> check_scope(const Request& request) {
  const Route* route = request.route;
  if (route == nullptr || request.scope >= route->scope) return std::nullopt;
  return error_response(
      403, fmt::format("this key is {}: {} {} needs a key that is {}", scope_name(request.scope),
                       request.method, route->pattern,
                       route->scope == Scope::kSample ? "sample-only or has every right"
                                                      : "neither read-only nor sample-only"));
}

// Whose key the request has, and whether it may be here with it.
std::optional<Response> authorize_key(const RequestCheck& with, Request& request) {
  const std::string_view key = presented_key(request);
  const std::optional<Caller> caller = with.identify(key);
  const char* const where =
      request.header("x-api-key").empty() ? "the key of Authorization: Bearer" : "X-API-Key";
  if (!caller) {
    return error_response(401, key.empty() ? "X-API-Key or Authorization: Bearer is missing: every "
                                             "endpoint but healthz needs a key"
                                           : fmt::format("{} is not a key of this server", where));
  }
  if (caller->has_expired)
    return error_response(401,
                          fmt::format("{} has expired; ask the operator for a new one", where));
  request.tenant = caller->tenant;
  request.is_admin = caller->is_admin;
  request.scope = caller->scope;
  request.key_id = caller->key_id;
  if (std::optional<Response> refused = check_scope(request)) return refused;
  return with.admit ? with.admit(request) : std::nullopt;
}

std::optional<Response> check_announced_body(const RequestCheck& with, AnnouncedBody body,
                                             const Request& request) {
  const std::string_view encoding = request.header("content-encoding");
  if (!encoding.empty() && encoding != "identity" && encoding != "zstd") {
    return error_response(415, fmt::format("Content-Encoding '{}' is not supported; wanted zstd or "
                                           "none",
                                           encoding.substr(0, 100)));
  }
  const BodyLimit limit = body_limit(with.options, request.route);
  if (body.length > limit.bytes) {
    return error_response(
        413, fmt::format("the body has {} bytes, this endpoint's limit is {} ({})", body.length,
                         limit.bytes, limit.option));
  }
  if (body.is_chunked && limit.bytes == 0) {
    return error_response(
        413, fmt::format("this endpoint reads no body, and one is announced ({})", limit.option));
  }
  return std::nullopt;
}

// The characters of a host with a port (RFC 3986, 3.2.2 and 3.2.3), without a user.
bool has_only_host_characters(std::string_view text) {
  return !text.empty() && text.find_first_not_of(
                              "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                              "abcdefghijklmnopqrstuvwxyz0123456789"
                              "-._~!$&'()*+,;=%[]:") == std::string_view::npos;
}

// Names, and the values whose case says nothing, in lower case.
void copy_headers(const BodyParser& parser, std::vector<Header>& headers) {
  for (const auto& field : parser.get()) {
    std::string name = lower(text_of(field.name_string()));
    std::string value = text_of(field.value());
    if (name == "content-encoding") value = lower(value);
    headers.push_back({std::move(name), std::move(value)});
  }
}

// That the request means this server, and comes from no page of another one.
std::optional<Response> check_host_and_origin(const AddressRules& rules, const Request& request) {
  const std::string_view host = request.header("host");
  if (!has_only_host_characters(host)) {  // RFC 9112, 3.2
    return error_response(400, fmt::format("Host: got '{}', wanted the name of this server",
                                           percent_escaped(host.substr(0, 100))));
  }
  if (!rules.is_own_host(host)) {
    return error_response(421, fmt::format("Host '{}' is not a name of this server; start it with "
                                           "--public-url if clients reach it by that name",
                                           host.substr(0, 300)));
  }
  if (!AddressRules::origin_matches_host(request.header("origin"), host)) {
    return error_response(403, "requests from other web pages are refused (Origin is not Host)");
  }
  return std::nullopt;
}

// The path first, since refusals have the form of it.
std::optional<Response> resolve_target(const AddressRules& rules, std::string_view raw_path,
                                       Request& request) {
  const std::optional<std::string> path = decode_path(raw_path);
  const bool is_path = path && path->starts_with('/');
  if (is_path) request.path = std::string(rules.without_prefix(*path));
  if (auto refused = check_host_and_origin(rules, request)) return refused;
  if (!is_path) return error_response(400, "the request's path is malformed");
  request.base_url = rules.base_url(request.header("host"));
  return std::nullopt;
}

// Finds the route, and whether the key may use it; gives the refusal, if any.
std::optional<Response> route_request(const RequestCheck& with, Request& request) {
  with.router.match_route(request);
  if (request.route == nullptr && request.is_open) return method_not_allowed_response(request);
  if (with.identify && (request.route == nullptr || request.route->needs_key)) {
    if (std::optional<Response> refused = authorize_key(with, request)) return refused;
  }
  if (!request.header("x-tinker-weights-access-token").empty()) {
    return error_response(400, "X-Tinker-Weights-Access-Token is not supported by this server");
  }
  return std::nullopt;
}

// Takes what stands behind '?' off a target, with the '?'.
std::string_view take_query(std::string_view& target) {
  const size_t question = std::min(target.find('?'), target.size());
  const std::string_view query = target.substr(std::min(question + 1, target.size()));
  target = target.substr(0, question);
  return query;
}

}  // namespace

std::string plain_path(const AddressRules& rules, std::string_view target) {
  const std::string_view path = target.substr(0, target.find_first_of("?%"));
  return path.starts_with('/') ? std::string(rules.without_prefix(path)) : "";
}

std::string_view target_of(const BodyParser& parser) {
  const boost::beast::string_view target = parser.get().target();
  return {target.data(), target.size()};
}

std::optional<Response> validate_header(const RequestCheck& with, const BodyParser& parser,
                                        Request& request) {
  const auto& head = parser.get();
  request.method = text_of(head.method_string());
  copy_headers(parser, request.headers);
  std::string_view target = target_of(parser);
  move_authority_to_host(target, request.headers);
  request.query = std::string(take_query(target));
  request.path = plain_path(with.rules, target);
  if (auto refused = check_framing({head.version(), parser.chunked()}, request.headers)) {
    return refused;
  }
  if (auto refused = resolve_target(with.rules, target, request)) return refused;
  if (auto refused = route_request(with, request)) return refused;
  return check_announced_body(with, announced_body(parser), request);
}

Exchange exchange_of(const Request& request) {
  Exchange out;
  out.method = request.method;
  out.path = request.path;
  if (request.route != nullptr) {
    out.route = request.route->pattern;
    out.effect = request.route->effect;
  }
  out.tenant = request.tenant;
  out.key_id = request.key_id;
  out.address = request.address;
  out.about = request.about;
  return out;
}

std::optional<Response> admit_in_flight(const Request& request, int64_t bytes) {
  constexpr int64_t kLeftByPolls = 16;
  if (request.tenant.empty()) return std::nullopt;
  Charge& charge = *request.charge;
  const bool is_upkeep = request.route != nullptr && request.route->effect == Effect::kUpkeep;
  if (is_upkeep && !request.route->watches_peer)
    return admit(charge, Use::kSign, bytes, kTooManyInFlight);
  const int64_t spare = is_upkeep ? charge.limit(Use::kRequest).limit() / kLeftByPolls : 0;
  return admit(charge, Use::kRequest, bytes, kTooManyInFlight, spare);
}

}  // namespace strata::server
