// SPDX-License-Identifier: Apache-2.0
#include "server/audit_sync.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/clock.h"
#include "server/http/request_check.h"
#include "server/state/store.h"

namespace strata::server {

// A request that waits for its first line.
struct AuditSync::Begun {
  Handler handler;
  Request request;
  Respond respond;
  Exchange told;
};

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

void AuditSync::write(AuditLine line, Then then, Then after) {
  const auto wait =
      std::make_shared<Wait>(Wait{now_seconds() + most_wait_, std::move(then), std::move(after)});
  waits_.push_back(wait);
  log_.write(std::move(line), [post = post_, wait](int64_t number) {
    post([wait, number] {
      const Then of = std::exchange(wait->then, nullptr);
      const Then late = std::exchange(wait->after, nullptr);
      if (of) {
        of(number);
      } else if (late && number != kNotWritten) {
        late(number);
      }
    });
  });
}

void AuditSync::tick(double now) {
  while (!waits_.empty() && (!waits_.front()->then || waits_.front()->until <= now)) {
    const std::shared_ptr<Wait> wait = std::move(waits_.front());
    waits_.pop_front();
    if (const Then then = std::exchange(wait->then, nullptr)) then(kLate);
  }
}

// What answers when the line of the answer is there. One that cannot be written, or not in time, is
// counted or comes later, and the answer goes all the same: it tells what was done.
Respond AuditSync::answer_behind_line(const Begun& what, int64_t number) {
  return [this, told = what.told, respond = what.respond, number](Response response) {
    Exchange ended = told;
    ended.status = response.status;
    AuditLine line = line_of(ended);
    line.begun = number;
    auto kept = std::make_shared<Response>(std::move(response));
    post_([this, line = std::move(line), respond, kept] {
      write(line, [respond, kept](int64_t) { respond(std::move(*kept)); }, nullptr);
    });
  };
}

Response AuditSync::not_written_response(int64_t number) {
  return busy_response(
      503, number == kLate ? "the audit log's disk does not answer (--audit-sync): nothing was done"
                           : "the audit log cannot be written (--audit-sync): nothing was done");
}

void AuditSync::run(Begun& what, int64_t number) {
  if (number == kNotWritten || number == kLate) return what.respond(not_written_response(number));
  const Respond answer = answer_behind_line(what, number);
  answer_faults(what.told.path, answer, [&] { what.handler(std::move(what.request), answer); });
}

Handler AuditSync::audited_if_answered(Handler handler) {
  return [this, handler = std::move(handler)](Request&& request, const Respond& respond) {
    Exchange told = told_of(request);
    const std::string path = request.path;
    const Respond answer = [this, told = std::move(told), path, respond](Response response) {
      if (response.status >= 400) return respond(std::move(response));
      Exchange ended = told;
      ended.status = response.status;
      AuditLine line = line_of(ended);
      line.object = one_word(path);
      auto kept = std::make_shared<Response>(std::move(response));
      post_([this, line = std::move(line), respond, kept]() mutable {
        write(
            std::move(line),
            [respond, kept](int64_t number) {
              respond(number == kNotWritten || number == kLate ? not_written_response(number)
                                                               : std::move(*kept));
            },
            nullptr);
      });
    };
    answer_faults(path, answer, [&] { handler(std::move(request), answer); });
  };
}

Handler AuditSync::audited(Handler handler) {
  return [this, handler = std::move(handler)](Request&& request, const Respond& respond) {
    AuditLine line = line_of(told_of(request));
    line.object = request.path;
    AuditLine refused = line;
    refused.status = 503;
    Exchange told = told_of(request);
    auto begun =
        std::make_shared<Begun>(Begun{handler, std::move(request), respond, std::move(told)});
    write(
        std::move(line), [this, begun](int64_t number) { run(*begun, number); },
        [this, refused = std::move(refused)](int64_t number) mutable {
          refused.begun = number;
          log_.add(refused);
        });
  };
}

}  // namespace strata::server
