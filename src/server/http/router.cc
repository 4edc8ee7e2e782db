// SPDX-License-Identifier: Apache-2.0
#include "server/http/router.h"

#include <fmt/format.h>

#include <exception>

#include "base/busy.h"
#include "base/check.h"
#include "base/conflict.h"
#include "base/log.h"
#include "base/trace.h"
#include "server/http/refusals.h"

namespace strata::server {
namespace {

// The segments between slashes; "/a//b" has an empty one, which matches nothing.
std::vector<std::string_view> segments(std::string_view path) {
  std::vector<std::string_view> out;
  if (!path.empty() && path.front() == '/') path.remove_prefix(1);
  for (;;) {
    const size_t slash = path.find('/');
    out.push_back(path.substr(0, slash));
    if (slash == std::string_view::npos) return out;
    path.remove_prefix(slash + 1);
  }
}

bool matches(const std::vector<std::string_view>& pattern,
             const std::vector<std::string_view>& path) {
  const bool takes_rest = pattern.back() == "{*}";
  if (takes_rest ? path.size() < pattern.size() : path.size() != pattern.size()) return false;
  for (size_t i = 0; i < pattern.size() - (takes_rest ? 1 : 0); ++i) {
    const bool fits = pattern[i] == "{}" ? !path[i].empty() : pattern[i] == path[i];
    if (!fits) return false;
  }
  return true;
}

// What the {} of the pattern match, in order.
void append_wildcard_matches(const std::vector<std::string_view>& pattern,
                             const std::vector<std::string_view>& path, Request& request) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == "{}") request.parts.emplace_back(path[i]);
    if (pattern[i] == "{*}") {
      const auto begin = static_cast<size_t>(path[i].data() - request.path.data());
      request.parts.push_back(request.path.substr(begin));
    }
  }
}

bool accepts_content_type(const Route& route, const Request& request) {
  if (route.body == BodyKind::kNone || request.body.empty()) return true;
  const std::string type = media_type(request.header("content-type"));
  if (type == "application/json") return true;
  return route.body == BodyKind::kJsonOrProto && type == kProtobuf;
}

// That a handler may run on it.
std::optional<Response> check_dispatchable(const Request& request) {
  const Route* route = request.route;
  if (route == nullptr && !request.allowed.empty()) return method_not_allowed_response(request);
  if (route == nullptr) {
    return error_response(
        404, fmt::format("no such endpoint: {} {}", request.method, request.path.substr(0, 200)));
  }
  if (route->needs_admin && !request.is_admin)
    return error_response(403, "this takes an admin key (--admin-keys)");
  if (!accepts_content_type(*route, request)) {
    return error_response(
        415,
        fmt::format("{}: Content-Type is '{}', wanted application/json{}", request.path,
                    request.header("content-type").substr(0, 100),
                    route->body == BodyKind::kJsonOrProto ? " or application/x-protobuf" : ""));
  }
  return std::nullopt;
}

Response exception_to_response(std::string_view where, const std::exception& fault) {
  if (dynamic_cast<const Conflict*>(&fault) != nullptr) return error_response(409, fault.what());
  if (dynamic_cast<const Busy*>(&fault) != nullptr) return refuse(kBusy, {fault.what()});
  const auto* error = dynamic_cast<const Error*>(&fault);
  if (error != nullptr && error->code != ErrorCode::kIo)
    return error_response(status_of(error->code), error->what());
  log(LogLevel::kError, fmt::format("{}: {}", where, fault.what()));
  // A full disk, a database that is away: not the request's fault, and it may pass.
  if (error != nullptr) return refuse(kStateIsAway);
  return error_response(500, "the server failed on this request; its log says why");
}

}  // namespace

Handler at_once(PlainHandler handler) {
  return [handler = std::move(handler)](const Request& request, const Respond& respond) {
    respond(handler(request));
  };
}

void run_answering_faults(std::string_view path, const Respond& respond,
                          const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& error) {
    respond(exception_to_response(path, error));
  }
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kResourceExhausted:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kIo:
      return 503;
  }
  return 500;
}

void Router::add(Route route) {
  CHECK(route.handler, route.pattern);
  routes_.push_back(std::move(route));
}

void Router::match_route(Request& request) const {
  const std::vector<std::string_view> wanted = segments(request.path);
  for (const Route& route : routes_) {
    const std::vector<std::string_view> pattern = segments(route.pattern);
    if (!matches(pattern, wanted)) continue;
    const bool is_head = request.method == "HEAD" && route.method == "GET" && !route.needs_key;
    if (route.method != request.method && !is_head) {
      request.allowed += request.allowed.empty() ? route.method : ", " + route.method;
      request.is_open = request.is_open || !route.needs_key;
      continue;
    }
    request.route = &route;
    return append_wildcard_matches(pattern, wanted, request);
  }
}

Response method_not_allowed_response(const Request& request) {
  Response response =
      error_response(405, fmt::format("{} is not a method of {}; it has: {}", request.method,
                                      request.path, request.allowed));
  response.headers.push_back({"allow", request.allowed});
  return response;
}

void Router::dispatch(Request request, const Respond& respond) const {
  if (std::optional<Response> refused = check_dispatchable(request))
    return respond(std::move(*refused));
  if (!request.parts.empty()) request.note(fmt::format("{}", fmt::join(request.parts, "/")));
  const std::string path = request.path;
  const TraceSpan span("request");
  const Route& route = *request.route;
  run_answering_faults(path, respond, [&] { route.handler(std::move(request), respond); });
}

Response run_for_response(const std::function<Response()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return exception_to_response("worker", error);
  }
}

}  // namespace strata::server
