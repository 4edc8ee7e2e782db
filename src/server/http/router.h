// SPDX-License-Identifier: Apache-2.0
// The route table: one row an endpoint. Handlers run on the one I/O thread, so the state they share
// needs no lock; they must not block for long. A handler that throws Error answers 400 or what
// status_of says; a long-poll handler keeps `respond` and calls it later.
//   router.add({"GET", "/api/v1/training_runs/{}", BodyKind::kNone, handler});
//   router.match_route(request);  ...  router.dispatch(std::move(request), respond);
// {} matches one path segment, {*} at the end what is left of the path. Built at start, constant
// afterwards.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "server/http/message.h"

namespace strata::server {

// Which limit of HttpOptions a body has.
enum class BodySize { kTiny, kUnread, kSmall, kSample, kData };

enum class BodyKind {
  kNone,        // GET and DELETE; POST whose body is ignored
  kJson,        // application/json, or any type with an empty body
  kJsonOrProto  // application/x-protobuf too
};

using Handler = std::function<void(Request&&, const Respond&)>;
using PlainHandler = std::function<Response(const Request&)>;

// What a request does to its tenant's state.
enum class Effect : uint8_t {
  kUpkeep,   // nothing: a poll, a sign of life
  kReads,    // nothing
  kChanges,  // something, or it takes the engine's time
};

struct Route {  // wants a key of the widest scope unless it says less
  std::string method;
  std::string pattern;
  BodyKind body = BodyKind::kNone;
  Handler handler;
  bool needs_key = true;
  BodySize size = BodySize::kSmall;
  Scope scope = Scope::kAll;
  Effect effect = Effect::kChanges;
  bool watches_peer = false;  // sets on_hang_up of its requests
  bool needs_admin = false;   // an admin key
};

// A handler that answers at once.
Handler at_once(PlainHandler handler);

// Runs `run`; what it throws becomes the response.
void run_answering_faults(std::string_view path, const Respond& respond,
                          const std::function<void()>& run);

// What `work` returns, or the response to what it throws.
Response run_for_response(const std::function<Response()>& work);

int status_of(ErrorCode code);  // 400, 404, 400, 400, 503

// To a request of a path that has other methods.
Response method_not_allowed_response(const Request& request);

class Router {
 public:
  void add(Route route);

  // Notes in the request which route it is of. HEAD is GET where no key is needed.
  void match_route(Request& request) const;
  // After match_route(): checks the body's type, runs the handler and turns its faults into
  // responses. 403 without an admin key where it needs one; 404, 405, 415.
  void dispatch(Request request, const Respond& respond) const;

  [[nodiscard]] const std::vector<Route>& routes() const { return routes_; }

 private:
  std::vector<Route> routes_;
};

}  // namespace strata::server
