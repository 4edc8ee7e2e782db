// SPDX-License-Identifier: Apache-2.0
// Requests between two audit lines (--audit-sync): nothing is done before a line that says that it
// begins is on the disk (its status is 0, its object the path), and nothing is answered before one
// with the answer is, which names the first ("begun"). Where the first cannot be written, or the
// disk does not answer in time, 503, and nothing is done; a first line that is written after that
// is followed by one with this status. An answer does not wait longer either. I/O thread only.
//   AuditSync sync(log, post);  route.handler = sync.audited(route.handler);
//   sync.end_overdue_waits(now);
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <string_view>

#include "server/http/router.h"
#include "server/http/server.h"
#include "server/tinker/audit.h"

namespace strata::server {

// Whether it hands out weights: an archive, signed URLs, or a file by one.
bool hands_out_weights(std::string_view route);
// Whether --audit-sync holds for it.
bool is_audited(Effect effect, std::string_view route);

// Of now.
AuditLine make_audit_line(const Exchange& exchange);

class AuditSync {
 public:
  static constexpr double kMostWait = 5.0;  // seconds for a line

  // `post` runs a task on the I/O thread. The log outlives this, and this the handlers' requests.
  AuditSync(AuditLog& log, std::function<void(std::function<void()> task)> post,
            double most_wait = kMostWait)
      : log_(log), post_(std::move(post)), most_wait_(most_wait) {}

  // Two lines, and nothing is done before the first of them is written.
  Handler audited(Handler handler);
  // Of what changes nothing and wants no key, so that anybody may ask: one line, before the answer,
  // and none for a refusal.
  Handler audited_if_answered(Handler handler);
  // Ends what has waited too long. Several times a second, with now_seconds().
  void end_overdue_waits(double now);

 private:
  static constexpr int64_t kNotWritten = 0, kLate = -1;
  using Then = std::function<void(int64_t number)>;
  struct Begun;
  struct Wait {
    double until = 0;
    Then then = {};   // null: it is over
    Then after = {};  // for a number that came late
  };
  // `then` learns the line's number, or one of the constants; `after`, when that was kLate, the
  // number all the same, should it come.
  void write(AuditLine line, Then then, Then after);
  // Calls `then`, or, where it was called with kLate, `after`.
  static void tell_number(Wait& wait, int64_t number);
  static Response not_written_response(int64_t number);
  void write_line_then_run(const Handler& handler, Request&& request, const Respond& respond);
  void run_then_write_line(const Handler& handler, Request&& request, const Respond& respond);
  void run_or_refuse(Begun& what, int64_t number);
  // Answers when the line of the answer is there, which has the number of that of its beginning, 0:
  // of none. One that cannot be written, or not in time, `refuses` the answer; else it goes all the
  // same, since it tells what was done.
  [[nodiscard]] Respond make_audited_respond(const Exchange& told, int64_t begun,
                                             const Respond& respond, bool refuses);

  AuditLog& log_;
  const std::function<void(std::function<void()>)> post_;
  const double most_wait_;
  std::deque<std::shared_ptr<Wait>> waits_;  // by `until`
};

}  // namespace strata::server
