// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/audit_sync.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/ascii.h"
#include "base/clock.h"
#include "server/http/request_check.h"
#include "server/store/wall_clock.h"

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

AuditLine make_audit_line(const Exchange& exchange) {
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
    post([wait, number] { tell_number(*wait, number); });
  });
}

void AuditSync::tell_number(Wait& wait, int64_t number) {
  const Then in_time = std::exchange(wait.then, nullptr);
  const Then late = std::exchange(wait.after, nullptr);
  if (in_time) {
    in_time(number);
  } else if (late && number != kNotWritten) {
    late(number);
  }
}

void AuditSync::end_overdue_waits(double now) {
  while (!waits_.empty() && (!waits_.front()->then || waits_.front()->until <= now)) {
    const std::shared_ptr<Wait> wait = std::move(waits_.front());
    waits_.pop_front();
    if (const Then then = std::exchange(wait->then, nullptr)) then(kLate);
  }
}

Respond AuditSync::make_audited_respond(const Exchange& told, int64_t begun, const Respond& respond,
                                        bool refuses) {
  return [this, told, begun, respond, refuses](Response response) {
    Exchange ended = told;
    ended.status = response.status;
    AuditLine line = make_audit_line(ended);
    line.begun = begun;
    const auto kept = std::make_shared<Response>(std::move(response));
    const Then answer = [respond, kept, refuses](int64_t number) {
      const bool is_written = number != kNotWritten && number != kLate;
      respond(is_written || !refuses ? std::move(*kept) : not_written_response(number));
    };
    post_([this, line, answer] { write(line, answer, nullptr); });
  };
}

Response AuditSync::not_written_response(int64_t number) {
  return busy_response(
      503, number == kLate ? "the audit log's disk does not answer (--audit-sync): nothing was done"
                           : "the audit log cannot be written (--audit-sync): nothing was done");
}

void AuditSync::run_or_refuse(Begun& what, int64_t number) {
  if (number == kNotWritten || number == kLate) return what.respond(not_written_response(number));
  const Respond answer = make_audited_respond(what.told, number, what.respond, /*refuses=*/false);
  run_answering_faults(what.told.path, answer,
                       [&] { what.handler(std::move(what.request), answer); });
}

Handler AuditSync::audited_if_answered(Handler handler) {
  return [this, handler = std::move(handler)](Request&& request, const Respond& respond) {
    run_then_write_line(handler, std::move(request), respond);
  };
}

void AuditSync::run_then_write_line(const Handler& handler, Request&& request,
                                    const Respond& respond) {
  Exchange told = exchange_of(request);
  told.about = std::make_shared<std::string>(percent_escaped(request.path));
  const Respond audited = make_audited_respond(told, /*begun=*/0, respond, /*refuses=*/true);
  const Respond answer = [respond, audited](Response response) {
    (response.status >= 400 ? respond : audited)(std::move(response));
  };
  const std::string path = request.path;
  run_answering_faults(path, answer, [&] { handler(std::move(request), answer); });
}

Handler AuditSync::audited(Handler handler) {
  return [this, handler = std::move(handler)](Request&& request, const Respond& respond) {
    write_line_then_run(handler, std::move(request), respond);
  };
}

void AuditSync::write_line_then_run(const Handler& handler, Request&& request,
                                    const Respond& respond) {
  AuditLine line = make_audit_line(exchange_of(request));
  line.object = request.path;
  AuditLine refused = line;
  refused.status = 503;
  Exchange told = exchange_of(request);
  auto begun =
      std::make_shared<Begun>(Begun{handler, std::move(request), respond, std::move(told)});
  write(
      std::move(line), [this, begun](int64_t number) { run_or_refuse(*begun, number); },
      [this, refused = std::move(refused)](int64_t number) mutable {
        refused.begun = number;
        log_.add(refused);
      });
}

}  // namespace strata::server
