// SPDX-License-Identifier: Apache-2.0
#include "server/audit_sync.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "server/http/request_check.h"
#include "server/state/store.h"

namespace strata::server {
namespace {

// A request that waits for its first line.
struct Begun {
  Handler handler;
  Request request;
  Respond respond;
  Exchange told;
};

// What answers when the line of the answer is there. One that cannot be written is counted, and
// the answer goes all the same: it tells what was done.
Respond answer_behind_line(AuditLog& log, const Begun& what, int64_t number) {
  return [&log, told = what.told, respond = what.respond, number](Response response) {
    Exchange ended = told;
    ended.status = response.status;
    AuditLine line = line_of(ended);
    line.begun = number;
    auto kept = std::make_shared<Response>(std::move(response));
    log.write(std::move(line), [respond, kept](int64_t) { respond(std::move(*kept)); });
  };
}

void run(AuditLog& log, Begun& what, int64_t number) {
  if (number == 0) {
    return what.respond(
        busy_response(503, "the audit log cannot be written (--audit-sync): nothing was done"));
  }
  const Respond answer = answer_behind_line(log, what, number);
  answer_faults(what.told.path, answer, [&] { what.handler(std::move(what.request), answer); });
}

}  // namespace

bool hands_out_weights(std::string_view route) {
  return route.ends_with("/archive") || route.find("external_weights") != std::string_view::npos ||
         route.starts_with("/api/v1/files/");
}

bool is_audited(Effect effect, std::string_view route) {
  return effect == Effect::kChanges || hands_out_weights(route);
}

AuditLine line_of(const Exchange& exchange) {
  return {.time = wall_seconds(),
          .tenant = exchange.tenant,
          .key_id = exchange.key_id,
          .address = exchange.address,
          .action = fmt::format("{} {}", exchange.method, exchange.route),
          .object = exchange.about ? *exchange.about : "",
          .status = exchange.status};
}

Handler audited(Handler handler, AuditLog& log,
                std::function<void(std::function<void()> task)> post) {
  return [handler = std::move(handler), &log, post = std::move(post)](Request&& request,
                                                                      const Respond& respond) {
    AuditLine line = line_of(told_of(request));
    line.object = request.path;
    Exchange told = told_of(request);
    auto begun =
        std::make_shared<Begun>(Begun{handler, std::move(request), respond, std::move(told)});
    log.write(std::move(line), [&log, post, begun](int64_t number) {
      post([&log, begun, number] { run(log, *begun, number); });
    });
  };
}

}  // namespace strata::server
