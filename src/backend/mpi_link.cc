// SPDX-License-Identifier: Apache-2.0
#include "backend/mpi_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/threads.h"
#include "base/trace.h"

namespace strata {
namespace {

constexpr double kBeat = 1.0;     // seconds between two signs of life
constexpr double kStopped = 3.0;  // without a turn of ours: we were stopped, not they
constexpr double kQuiet = 5.0;    // after which one that is waited for is named
// Who waits makes progress itself: at first all the time, and then with rests of a share of the
// time that it has waited, since a machine may have more ranks than cores. It never yields: whose
// turn it then is has it for milliseconds, and who rests is woken in time.
constexpr double kEager = 50e-6;
constexpr double kRestShare = 0.1;
constexpr double kShortRest = 20e-6, kLongRest = 1e-3;
// The thread that computes nothing rests so long while nobody waits and nothing is on its way, and
// so long while somebody does.
constexpr double kIdleRest = 10e-3, kDrivenRest = 100e-3;
constexpr size_t kLongestMessage = 3000;  // of a fault: sent at once, whoever listens

// Who it is: its host and the cores that it may use.
std::string hello() { return host_name() + " " + usable_core_list(); }

int channel_of(WorkLevel level) { return level == WorkLevel::kWork ? kData : kBreakData; }
WorkLevel level_of(const MpiOperation& operation) {
  return operation.channel == kData ? WorkLevel::kWork : WorkLevel::kBreak;
}

double rest_after(double waited) { return std::clamp(waited * kRestShare, kShortRest, kLongRest); }

}  // namespace

// Tags of the control channel: who it is, that it lives, that its body has ended or thrown, that
// rank 0 leaves, how a piece of work has ended, and what broke in, and that all are to let that in.
enum MpiLink::Control : int {
  kHello,
  kAlive,
  kEnded,
  kFault,
  kLeaving,
  kSettled,
  kBreakSettled,
  kAsksBreak
};

MpiLink::MpiLink(const MpiTable& table, const MpiOptions& options)
    : table_(table), options_(options), thread_([this] { run_progress_thread(); }) {
  const MutexLock lock(mutex_);
  while (!started_) changed_.wait(mutex_);
  if (!start_fault_.empty()) throw Error(ErrorCode::kIo, "MPI does not start: " + start_fault_);
  wait_for_hellos();
  count_ranks_here();
}

MpiLink::~MpiLink() {
  const MutexLock lock(mutex_);
  leave_together();
  leaves_ = true;
  rested_.notify_all();
}

void MpiLink::ask_for_break() {
  const MutexLock lock(mutex_);
  send_control_to_all(kAsksBreak, "");
  rested_.notify_all();
}

void MpiLink::send_bytes(WorkLevel level, int to, int64_t tag, const void* data, int64_t bytes) {
  MpiOperation& operation = claim_send(bytes);
  copy_to_buffer(data, bytes, operation);
  operation.channel = channel_of(level);
  operation.peer = to;
  operation.tag = mpi_tag(tag);
  const MutexLock lock(mutex_);
  begin_operation(operation);
  retire_finished();
  // What is still on its way is this thread's to move, or of the one that computes nothing.
  if (operation.busy) rested_.notify_all();
}

void MpiLink::receive_bytes(WorkLevel level, int from, int64_t tag, void* data, int64_t bytes,
                            const Interruption* breaks) {
  auto operation = std::make_unique<MpiOperation>(MpiOperation{
      channel_of(level), /*sends=*/false, from, mpi_tag(tag), data, bytes, /*busy=*/true});
  begin_receive(*operation);
  while (!try_await_operation(*operation, breaks)) breaks->run();
  const MutexLock lock(mutex_);
  const bool is_cancelled = operation->is_cancelled;
  // Its sender died in the middle of a message: nothing writes the memory any longer.
  if (operation->busy) abandoned_.push_back(std::move(operation));
  if (is_cancelled) throw_stopped();
  CHECK(operation->fault.empty(), operation->fault, from, tag, bytes);
}

// The first counts.
void MpiLink::announce_failure(ErrorCode code, const std::string& what) {
  const MutexLock lock(mutex_);
  if (fault_) return;
  fault_ = {code, what};
  std::string text(1, static_cast<char>(code));
  text += what.substr(0, kLongestMessage);
  send_control_to_all(kFault, text);
}

std::optional<RankFailure> MpiLink::settle(WorkLevel level, const std::optional<RankFailure>& own,
                                           const Interruption* breaks) {
  const SettledWork mine = send_settled(level, own);
  while (!try_await_settled(level, breaks)) breaks->run();
  const MutexLock lock(mutex_);
  const std::vector<SettledWork> all = peers_.take_settled(level, mine);
  const int rank = find_failed_rank(all);
  if (rank < 0) return std::nullopt;
  drain_messages(level);
  // Nobody begins other work while another still takes what is left of this.
  exchange_settled(level);
  RankFailure failure = all[static_cast<size_t>(rank)].failure;
  if (rank > 0) failure.what = fmt::format("{}: {}", peers_[rank].name(rank), failure.what);
  return failure;
}

std::string MpiLink::find_silent_rank() {
  const MutexLock lock(mutex_);
  const double now = now_seconds();
  std::string text;
  peers_.for_others([&](int other, const MpiPeer& peer) {
    const double silence = now - peer.last_heard;
    if (options_.waits_for_silent && text.empty() && silence >= kQuiet)
      text = peer.silence_text(other, silence);
  });
  return text;
}

// Announces that this rank's body has ended, and waits until all others' have.
std::optional<RankFailure> MpiLink::join_others() {
  const MutexLock lock(mutex_);
  send_control_to_all(kEnded, "");
  double end = 0.0;
  const double since = begin_to_wait();
  while (!peers_.all_others([](const MpiPeer& peer) { return peer.ended || peer.dead; })) {
    drive_progress(since);
    if (!fault_) continue;
    // Who computes hears of it at its next receive.
    if (end == 0.0) end = now_seconds() + options_.silence;
    if (now_seconds() >= end) break;
  }
  end_to_wait();
  return fault_;
}

bool MpiLink::speaks() {
  const MutexLock lock(mutex_);
  return peers_.are_lower_dead();
}

// MPI's are from 0 on.
int MpiLink::mpi_tag(int64_t tag) const {
  CHECK(tag >= -1 && tag < end_of_tags(), tag, highest_tag_);
  return static_cast<int>(tag + 1);
}

MpiOperation& MpiLink::claim_send(int64_t bytes) {
  const MutexLock lock(mutex_);
  return sends_.claim(bytes);
}

void MpiLink::begin_receive(MpiOperation& operation) {
  const MutexLock lock(mutex_);
  begin_operation(operation);
}

void MpiLink::begin_operation(MpiOperation& o) {
  o.handle = o.sends ? table_.begin_send(o.channel, o.peer, o.tag, o.own.data(), std::ssize(o.own))
                     : table_.begin_receive(o.channel, o.peer, o.tag, o.data, o.bytes);
  CHECK(o.handle != nullptr, o.channel, o.peer, o.tag, o.bytes);
  active_.push_back(&o);
  o.began = last_moved_ = now_seconds();
}

void MpiLink::send_own(int channel, int to, int tag, const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  MpiOperation& operation = *controls_.emplace_back(std::make_unique<MpiOperation>());
  operation.channel = channel;
  operation.peer = to;
  operation.tag = tag;
  operation.own.assign(first, first + text.size());
  operation.busy = true;
  begin_operation(operation);
}

void MpiLink::send_control_to_all(Control what, const std::string& text) {
  for (int to = 0; to < size_; ++to) {
    if (to != rank_ && !peers_[to].dead) send_own(kControl, to, what, text);
  }
}

void MpiLink::wait_for_hellos() {
  const double since = begin_to_wait();
  while (!peers_.all_others([](const MpiPeer& peer) { return !peer.hello.empty() || peer.dead; }))
    drive_progress(since);
  end_to_wait();
}

void MpiLink::count_ranks_here() {
  for (int other = 0; other < size_; ++other) {
    if (other != rank_ && peers_[other].hello != hello()) continue;
    rank_here_ += other < rank_ ? 1 : 0;
    ++ranks_here_;
  }
}

// For a receive. False: a break is due. It may still be busy afterwards, where its sender died.
bool MpiLink::try_await_operation(MpiOperation& operation, const Interruption* breaks) {
  const MutexLock lock(mutex_);
  const WorkLevel level = level_of(operation);
  double end = 0.0;
  const double since = begin_to_wait();
  awaited_ = &operation;
  while (operation.busy && (end == 0.0 || now_seconds() < end)) {
    if ((fault_ || peers_.is_work_stopped(level)) && !operation.is_cancelled) {
      operation.is_cancelled = true;
      table_.cancel(operation.handle);  // and wait: MPI borrows the memory
    }
    if (fault_ && end == 0.0) end = now_seconds() + options_.silence;
    if (breaks != nullptr && !operation.is_cancelled && breaks->is_due()) break;
    drive_progress(since);
  }
  awaited_ = nullptr;
  end_to_wait();
  return !operation.busy || operation.is_cancelled;
}

// By another rank's failure.
void MpiLink::throw_stopped() {
  throw Error(ErrorCode::kIo, fault_ ? fault_->what : "another rank has failed");
}

SettledWork MpiLink::send_settled(WorkLevel level, const std::optional<RankFailure>& own) {
  using enum SettledWork::End;
  const MutexLock lock(mutex_);
  SettledWork mine;
  if (own) mine = {peers_.is_work_stopped(level) ? kStopped : kFailed, *own};
  send_control_to_all(settled_tag(level), mine.text(kLongestMessage));
  return mine;
}

MpiLink::Control MpiLink::settled_tag(WorkLevel level) {
  return level == WorkLevel::kWork ? kSettled : kBreakSettled;
}

// Waits for all. False: a break is due.
bool MpiLink::try_await_settled(WorkLevel level, const Interruption* breaks) {
  const MutexLock lock(mutex_);
  return try_await_settled_locked(level, breaks);
}

bool MpiLink::try_await_settled_locked(WorkLevel level, const Interruption* breaks) {
  bool is_due = false;
  const double since = begin_to_wait();
  awaits_ends_ = since;
  while (!fault_ && !is_due && !peers_.have_settled(level)) {
    drive_progress(since);
    is_due = breaks != nullptr && breaks->is_due();
  }
  awaits_ends_.reset();
  end_to_wait();
  if (fault_) throw_stopped();
  return !is_due;
}

void MpiLink::exchange_settled(WorkLevel level) {
  send_control_to_all(settled_tag(level), SettledWork().text(kLongestMessage));
  static_cast<void>(try_await_settled_locked(level, /*breaks=*/nullptr));
  static_cast<void>(peers_.take_settled(level, {}));
}

// Takes what was sent and nobody received: up to each rank's mark, behind which it sends nothing.
void MpiLink::drain_messages(WorkLevel level) {
  const int channel = channel_of(level);
  for (int to = 0; to < size_; ++to) send_own(channel, to, highest_tag_, "");
  const double since = begin_to_wait();
  std::vector<std::byte> bytes_of_nobody;
  for (int left = size_; left > 0 && !fault_;) {
    int from = 0, tag = 0;
    int64_t bytes = 0;
    if (!table_.probe(channel, &from, &tag, &bytes)) {
      drive_progress(since);
      continue;
    }
    bytes_of_nobody.resize(static_cast<size_t>(bytes));
    void* handle = table_.begin_receive(channel, from, tag, bytes_of_nobody.data(), bytes);
    const char* fault = nullptr;
    while (!table_.poll_operation(handle, &fault)) drive_progress(since);
    left -= tag == highest_tag_ ? 1 : 0;
  }
  end_to_wait();
}

void MpiLink::leave_together() {
  if (rank_ == 0) return send_control_to_all(kLeaving, "");
  const double since = begin_to_wait(), end = since + options_.silence;
  while (!peers_[0].leaving && !peers_[0].dead && now_seconds() < end) drive_progress(since);
  end_to_wait();
}

// A thread that waits: from when on.
double MpiLink::begin_to_wait() {
  ++num_drivers_;
  return now_seconds();
}

void MpiLink::end_to_wait() {
  --num_drivers_;
  if (num_drivers_ == 0 && !active_.empty()) rested_.notify_all();
}

void MpiLink::drive_progress(double since) {
  if (make_progress()) return;
  const double now = now_seconds(), waited = now - since;
  if (waited > kEager) changed_.wait_until(mutex_, now + rest_after(waited));
}

// Starts MPI and greets all ranks. False where MPI does not start.
bool MpiLink::start_mpi() {
  const char* fault = table_.start(options_.chunk_bytes, &rank_, &size_);
  if (fault == nullptr) highest_tag_ = table_.highest_tag();
  const MutexLock lock(mutex_);
  if (fault != nullptr) start_fault_ = fault;
  const double now = now_seconds();
  peers_.start(rank_, size_, now);
  if (fault == nullptr) send_control_to_all(kHello, hello());
  started_ = true;
  changed_.notify_all();
  return fault == nullptr;
}

// The thread that computes nothing.
void MpiLink::run_progress_thread() {
  name_thread("mpi");
  if (!start_mpi()) return;
  bool any_dead = false;
  {
    const MutexLock lock(mutex_);
    last_turn_ = now_seconds();
    while (!try_to_leave()) {
      if (!make_progress()) rested_.wait_until(mutex_, now_seconds() + rest());
    }
    any_dead = !peers_.all_others([](const MpiPeer& peer) { return !peer.dead; });
  }
  // MPI ends together with all ranks, or never.
  any_dead ? table_.abort(1) : table_.end();
}

double MpiLink::rest() {
  if (num_drivers_ > 0) return kDrivenRest;
  return active_.empty() ? kIdleRest : rest_after(now_seconds() - last_moved_);
}

// What nobody has received is dropped.
bool MpiLink::try_to_leave() {
  if (!leaves_) return false;
  const bool tells = std::any_of(active_.begin(), active_.end(), [](const MpiOperation* operation) {
    return operation->channel == kControl && operation->tag != kAlive;
  });
  if (leave_by_ == 0.0) leave_by_ = now_seconds() + options_.silence;
  return !tells || now_seconds() > leave_by_;
}

// Whether anything came of it. Who waits hears of what the other thread saw.
bool MpiLink::make_progress() {
  bool moved = retire_finished();
  moved = poll_controls() || moved;
  check_liveness();
  if (!moved) return false;
  last_moved_ = now_seconds();
  changed_.notify_all();
  return true;
}

bool MpiLink::retire_finished() {
  const auto retire_if_finished = [&](MpiOperation* operation) {
    const char* fault = nullptr;
    if (!table_.poll_operation(operation->handle, &fault)) return false;
    if (fault != nullptr) operation->fault = fault;
    operation->busy = false;
    return true;
  };
  // In order: those of one sender and tag.
  if (std::erase_if(active_, retire_if_finished) == 0) return false;
  std::erase_if(controls_, [](const auto& operation) { return !operation->busy; });
  return true;
}

bool MpiLink::poll_controls() {
  int from = 0, tag = 0;
  int64_t bytes = 0;
  bool any = false;
  while (table_.probe(kControl, &from, &tag, &bytes)) {
    any = true;
    std::string text(static_cast<size_t>(bytes), '\0');
    void* handle = table_.begin_receive(kControl, from, tag, text.data(), bytes);
    const char* fault = nullptr;
    while (!table_.poll_operation(handle, &fault)) {  // it has come: small ones are sent whole
    }
    handle_control(from, tag, text);
  }
  return any;
}

void MpiLink::handle_control(int from, int tag, const std::string& text) {
  MpiPeer& peer = peers_[from];
  peer.last_heard = now_seconds();
  if (tag == kHello) {
    peer.hello = text;
    peer.host = text.substr(0, text.find(' '));
  }
  if (tag == kAlive) {
    peer.waited = text.empty() ? 0.0 : std::atof(text.c_str());
    peer.awaits = text.substr(std::min(text.size(), text.find(' ') + 1));
  }
  if (tag == kEnded) peer.ended = true;
  if (tag == kLeaving) peer.leaving = true;
  if (tag == kSettled) peer.settled_work.push_back(SettledWork::of_text(text));
  if (tag == kBreakSettled) peer.settled_breaks.push_back(SettledWork::of_text(text));
  if (tag == kAsksBreak) ++num_breaks_asked_;
  if (tag != kFault || fault_ || text.empty()) return;
  fault_ = {static_cast<ErrorCode>(text[0]),
            fmt::format("{}: {}", peer.name(from), text.substr(1))};
}

// Tells others that this rank lives, and notes who has fallen silent.
void MpiLink::check_liveness() {
  const double now = now_seconds();
  if (now - last_turn_ > kStopped) {  // not they
    peers_.for_others([&](int, MpiPeer& peer) { peer.last_heard = now; });
    awake_since_ = now;
  }
  last_turn_ = now;
  if (now - last_beat_ >= kBeat) {
    last_beat_ = now;
    const std::optional<double> since = waits_since();
    send_control_to_all(kAlive, since ? fmt::format("{} {}", now - *since, awaited_text()) : "");
    if (since && now - *since >= options_.deadlock) end_deadlock(now);
  }
  mark_silent_peers_dead(now);
}

std::optional<double> MpiLink::waits_since() {
  if (!options_.waits_for_silent) return {};
  const bool any_sent = std::ranges::any_of(active_, [](const MpiOperation* operation) {
    return operation->sends && operation->channel != kControl;
  });
  if (any_sent) return {};
  if (awaited_ != nullptr && awaited_->busy) return std::max(awaited_->began, awake_since_);
  if (awaits_ends_) return std::max(*awaits_ends_, awake_since_);
  return {};
}

std::string MpiLink::awaited_text() const {
  return awaited_ == nullptr ? "the end of the others' work"
                             : fmt::format("a message of rank {}", awaited_->peer);
}

void MpiLink::end_deadlock(double now) {
  const std::string text =
      peers_.find_deadlock(awaited_text(), options_.deadlock, now - 2.0 * kBeat);
  if (text.empty() || fault_) return;
  fault_ = {ErrorCode::kIo, fmt::format("ranks wait for each other since {:.0f} s, a fault of "
                                        "Strata: {}; all end",
                                        options_.deadlock, text)};
  changed_.notify_all();
}

void MpiLink::mark_silent_peers_dead(double now) {
  if (options_.waits_for_silent) return;
  for (int other = 0; other < size_; ++other) {
    MpiPeer& peer = peers_[other];
    if (other == rank_ || peer.dead || now - peer.last_heard < options_.silence) continue;
    peer.dead = true;
    if (!fault_) fault_ = peer.silence_failure(other, options_.silence);
    changed_.notify_all();
  }
}

}  // namespace strata
