// SPDX-License-Identifier: Apache-2.0
#include "server/http/request_check.h"

#include <fmt/format.h>

#include <algorithm>

namespace strata::server {

BodyLimit body_limit(const HttpOptions& options, const Route* route) {
  if (route != nullptr && !route->needs_key) return {0, "endpoints without a key read none"};
  const BodySize size = route == nullptr ? BodySize::kSmall : route->size;
  switch (size) {
    case BodySize::kPass:
      return {options.max_body, "--max-body", true};
    case BodySize::kSample:
      return {std::min(options.max_sample_body, options.max_body), "--max-sample-body", true};
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
  if (given.size() <= kBearer.size()) return {};
  const bool is_bearer =
      std::equal(kBearer.begin(), kBearer.end(), given.begin(), [](char a, char b) {
        return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
      });
  if (!is_bearer) return {};
  given.remove_prefix(std::min(given.find_first_not_of(' ', kBearer.size()), given.size()));
  return given;
}

}  // namespace

std::optional<Response> check_request(const RequestCheck& with, std::string_view raw_path,
                                      AnnouncedBody body, Request& request) {
  const std::optional<std::string> path = decode_path(raw_path);
  const bool is_path = path && path->starts_with('/');
  // First, since refusals have the form of their path.
  if (is_path) request.path = std::string(with.rules.without_prefix(*path));
  const std::string_view host = request.header("host");
  if (!with.rules.knows_host(host)) {
    return error_response(421, fmt::format("Host '{}' is not a name of this server; start it with "
                                           "--public-url if clients reach it by that name",
                                           host.substr(0, 300)));
  }
  if (!AddressRules::origin_fits(request.header("origin"), host)) {
    return error_response(403, "requests from other web pages are refused (Origin is not Host)");
  }
  if (!is_path) return error_response(400, "the request's path is malformed");
  request.base_url = with.rules.base_url(host);
  with.router.find(request);
  const Route* route = request.route;
  if (route == nullptr || route->needs_key) {
    const std::string_view key = presented_key(request);
    const std::optional<Caller> caller = with.identify(key);
    if (!caller) {
      return error_response(
          401, key.empty() ? "X-API-Key is missing: every endpoint but healthz needs a key"
                           : "X-API-Key is not a key of this server");
    }
    if (caller->has_expired) {
      return error_response(401, "X-API-Key has expired; ask the operator for a new one");
    }
    request.tenant = caller->tenant;
    request.is_admin = caller->is_admin;
    request.scope = caller->scope;
    request.key_id = caller->key_id;
    if (route != nullptr && request.scope < route->scope) {
      return error_response(
          403, fmt::format("this key is {}: {} {} needs a key that is {}",
                           scope_name(request.scope), request.method, route->pattern,
                           route->scope == Scope::kSample ? "sample-only or has every right"
                                                          : "neither read-only nor sample-only"));
    }
    if (with.admit) {
      if (std::optional<Response> refused = with.admit(request)) return refused;
    }
  }
  if (!request.header("x-tinker-weights-access-token").empty()) {
    return error_response(400, "X-Tinker-Weights-Access-Token is not supported by this server");
  }
  const std::string_view encoding = request.header("content-encoding");
  if (!encoding.empty() && encoding != "identity" && encoding != "zstd") {
    return error_response(415, fmt::format("Content-Encoding '{}' is not supported; wanted zstd or "
                                           "none",
                                           encoding.substr(0, 100)));
  }
  const BodyLimit limit = body_limit(with.options, route);
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

Exchange told_of(const Request& request) {
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

}  // namespace strata::server
