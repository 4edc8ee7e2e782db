// SPDX-License-Identifier: Apache-2.0
// What happens by itself: time limits, sweeps, and whether new work should be sent here.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "server/http/message.h"
#include "server/tinker/service/service.h"

namespace strata::server {
namespace {

constexpr double kTickSeconds = 0.1;   // what is wanted between ticks
constexpr double kLagSeconds = 10.0;   // a window of the lag's highest
constexpr double kStallSeconds = 2.0;  // a tick that is later than this tells of a standstill
constexpr double kMostBehind = 1.9;    // that one tick counts for: alone it comes to half of it

constexpr double kSweepSeconds = 5.0;
constexpr double kOldTick = 5.0;         // the last tick is too old to take new work
constexpr size_t kEndsAtOnce = 50;       // sessions at a tick,
constexpr double kEndingSeconds = 0.01;  // and no new one after so long
constexpr int kReadyRetrySeconds = 5;

}  // namespace

double Clock::tick(double now) {
  const double gap = now - std::exchange(ticked_, now);
  has_ticked_ = true;
  if (now - lag_since_ > kLagSeconds) {
    lag_before_ = lag_;
    lag_ = 0;
    lag_since_ = now;
  }
  lag_ = std::max(lag_, gap - kTickSeconds);
  behind_ = (behind_ + std::clamp(gap - kTickSeconds, 0.0, kMostBehind)) / 2;
  return gap > kStallSeconds ? gap : 0.0;
}

void Service::tick(double now) {
  const double standstill = clock_.tick(now);
  if (standstill > 0) exclude_standstill_from_limits(now, standstill);
  dispatch_.tick(now, standstill);
  run_guarded("futures", [&] { futures_.expire_polls_and_results(now); });
  drops_left_ = kDropsAtOnce;
  run_guarded("drop_ended", [&] {
    drop_samplers_of_ended_sessions();
    drop_readers_of_gone_checkpoints();
  });
  reconnect_store();
  const bool is_due = now - last_sweep_ >= std::min(kSweepSeconds, options_.session_timeout / 4);
  if (is_due || more_to_end_) more_to_end_ = end_silent_sessions(now);
  if (!is_due) return;
  last_sweep_ = now;
  sweep();
}

// On another thread, since that takes a while; once it is back, what expired meanwhile goes.
void Service::reconnect_store() {
  if (looking_ || !parts_.store.is_away()) return;
  looking_ = true;
  run_file_job("", [this] {
    const bool is_back = catch_fault([&] { parts_.store.revive(); }).empty();  // sweeps tell of it
    run_on_io_thread([this, is_back] {
      looking_ = false;
      if (is_back) last_sweep_ = 0;
    });
  });
}

void Service::run_file_job(const std::string& tenant, const std::function<void()>& job) {
  parts_.aside ? parts_.aside(tenant, job) : job();
}

void Service::run_on_io_thread(const std::function<void()>& done) {
  parts_.back ? parts_.back(done) : done();
}

// Thousands may fall silent at one moment, and each end is written down: some at a tick.
bool Service::end_silent_sessions(double now) {
  const auto ids = sessions_.find_silent(now, options_.session_timeout, kEndsAtOnce);
  const double until = now_seconds() + kEndingSeconds;
  bool is_well = true;
  for (const std::string& id : ids) {
    if (parts_.store.is_away()) return false;
    if (now_seconds() > until) return is_well;
    // What fails is tried again at the next look.
    const std::string fault = run_guarded("end_session", [&] {
      end_session(id, "timed_out", "no heartbeat",
                  fmt::format("no sign of life for {:g} s", options_.session_timeout));
    });
    is_well = is_well && fault.empty();
  }
  return is_well && ids.size() == kEndsAtOnce;
}

void Service::sweep() {
  write_usage_in_background();
  if (std::exchange(sweeping_, true)) return;
  sweep_files();
}

// Not behind the files of whoever deletes and saves much: a crash forgets some seconds.
void Service::write_usage_in_background() {
  if (std::exchange(writing_usage_, true)) return;
  run_file_job("", [this, used = parts_.usage.changed_rows()] {
    const std::string fault = catch_fault([&] { parts_.store.upsert_usage(used); });
    run_on_io_thread([this, fault, used] {
      writing_usage_ = false;
      if (fault.empty()) parts_.usage.note_written(used);
      record_sweep_fault(usage_fault_, fault);
    });
  });
}

// In pieces, so that no tenant's save waits for all that others deleted.
void Service::sweep_files() {
  run_file_job("", [this] {
    bool has_more = false;
    const std::string fault =
        catch_fault([&] { has_more = parts_.registry.sweep_piece(wall_seconds(), now_seconds()); });
    run_on_io_thread([this, has_more, fault, gone = parts_.registry.take_gone()] {
      gone_.insert(gone_.end(), gone.begin(), gone.end());
      if (has_more && !stopping_) return sweep_files();
      sweeping_ = false;
      record_sweep_fault(sweep_fault_, fault);
    });
  });
}

void Service::record_sweep_fault(std::string& last, const std::string& fault) {
  last = run_guarded("sweep", [&] {
    if (!fault.empty()) throw Error(ErrorCode::kIo, fault);
  });
}

void Service::write_changed_usage() {
  const std::vector<UsageRow> rows = parts_.usage.changed_rows();
  parts_.store.upsert_usage(rows);
  parts_.usage.note_written(rows);
}

std::string Service::why_not_ready(double now) const {
  if (stopping_) return "draining: the server is shutting down";
  if (!clock_.has_ticked()) return "loading: the server starts";
  if (clock_.age(now) > kOldTick)
    return fmt::format("the last tick is {:.1f} s old", clock_.age(now));
  const double clock = clock_seconds();
  if (clock < believed_seconds(clock)) return "the machine's clock is wrong: it is before 2020";
  if (!usage_fault_.empty() || !sweep_fault_.empty() || parts_.store.is_away())
    return "the state store or its disk is away";
  return dispatch_.why_engines_wait ? dispatch_.why_engines_wait() : "";
}

void Service::exclude_standstill_from_limits(double now, double seconds) {
  log(LogLevel::kWarning,
      fmt::format("the server stood still for {:.1f} s: no time limit counts them", seconds));
  sessions_.excuse(now, seconds);
  futures_.put_off_expiry(seconds);
}

// Without a key, so the reason names no path and no tenant: the log and the metrics say more.
Response Service::readiness() const {
  const std::string why = why_not_ready(now_seconds());
  if (!why.empty()) return not_ready(why);
  return json_response(200, JsonObject{{"status", "ready"}}.text());
}

Response Service::not_ready(const std::string& why) {
  return with_retry_after(
      json_response(503, JsonObject{{"status", "unready"}, {"reason", why}}.text()),
      kReadyRetrySeconds);
}

void Service::fail_pending() {
  const std::string reason = "the server was shut down before this request was done";
  for (const auto& command : futures_.fail_all_pending(reason, now_seconds())) {
    undo(*command);
    if (!command->listener) continue;
    const api::Outcome failed = api::Failure{api::FaultCategory::kServer, reason};
    run_guarded("tell", [&] { command->listener({command->request, failed}); });
  }
}

}  // namespace strata::server
