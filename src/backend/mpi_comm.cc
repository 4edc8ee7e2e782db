// SPDX-License-Identifier: Apache-2.0
#include "backend/mpi_comm.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <exception>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "backend/mpi_operation.h"
#include "backend/mpi_peer.h"
#include "backend/mpi_plugin.h"
#include "backend/settled_work.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/trace.h"

namespace strata {

std::string host_name() {
  std::array<char, 256> name = {};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

namespace {

// Tags of the control channel: who it is, that it lives, that its body has ended or thrown, that
// rank 0 leaves, and how a piece of work has ended.
enum Control : int { kHello, kAlive, kEnded, kFault, kLeaving, kSettled };

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

}  // namespace

class MpiRanks::Link : public Comm {
 public:
  Link(const MpiTable& table, const MpiOptions& options)
      : table_(table), options_(options), thread_([this] { run_progress_thread(); }) {
    const MutexLock lock(mutex_);
    while (!started_) changed_.wait(mutex_);
    if (!start_fault_.empty()) throw Error(ErrorCode::kIo, "MPI does not start: " + start_fault_);
    wait_for_hellos();
    count_ranks_here();
  }
  ~Link() override {
    const MutexLock lock(mutex_);
    leave_together();
    leaves_ = true;
    rested_.notify_all();
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] int rank_here() const override { return rank_here_; }
  [[nodiscard]] int ranks_here() const override { return ranks_here_; }
  // The highest is the mark's (drain_messages()).
  [[nodiscard]] int64_t end_of_tags() const override { return highest_tag_ - 1; }

  void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) override {
    MpiOperation& operation = claim_send(bytes);
    copy_to_buffer(data, bytes, operation);
    operation.peer = to;
    operation.tag = mpi_tag(tag);
    const MutexLock lock(mutex_);
    begin_operation(operation);
    retire_finished();
    // What is still on its way is this thread's to move, or of the one that computes nothing.
    if (operation.busy) rested_.notify_all();
  }

  void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) override {
    auto operation = std::make_unique<MpiOperation>(
        MpiOperation{kData, /*sends=*/false, from, mpi_tag(tag), data, bytes, /*busy=*/true});
    const MutexLock lock(mutex_);
    begin_operation(*operation);
    await_operation(*operation);
    const bool is_cancelled = operation->is_cancelled;
    // Its sender died in the middle of a message: nothing writes the memory any longer.
    if (operation->busy) abandoned_.push_back(std::move(operation));
    if (is_cancelled) throw_stopped();
    CHECK(operation->fault.empty(), operation->fault, from, tag, bytes);
  }

  // The first counts.
  void announce_failure(ErrorCode code, const std::string& what) override {
    const MutexLock lock(mutex_);
    if (fault_) return;
    fault_ = {code, what};
    std::string text(1, static_cast<char>(code));
    text += what.substr(0, kLongestMessage);
    send_control_to_all(kFault, text);
  }

  std::optional<RankFailure> settle(const std::optional<RankFailure>& own) override {
    using enum SettledWork::End;
    const MutexLock lock(mutex_);
    SettledWork mine;
    if (own) mine = {is_work_stopped() ? kStopped : kFailed, *own};
    const std::vector<SettledWork> all = exchange_settled(mine);
    const int rank = find_failed_rank(all);
    if (rank < 0) return std::nullopt;
    drain_messages();
    // Nobody begins other work while another still takes what is left of this.
    exchange_settled({});
    RankFailure failure = all[static_cast<size_t>(rank)].failure;
    if (rank > 0)
      failure.what =
          fmt::format("{}: {}", peers_[static_cast<size_t>(rank)].name(rank), failure.what);
    return failure;
  }

  [[nodiscard]] std::string find_silent_rank() override {
    const MutexLock lock(mutex_);
    const double now = now_seconds();
    for (int other = 0; options_.waits_for_silent && other < size_; ++other) {
      const MpiPeer& peer = peers_[static_cast<size_t>(other)];
      if (other == rank_ || now - peer.last_heard < kQuiet) continue;
      return peer.silence_text(other, now - peer.last_heard);
    }
    return {};
  }

  // Announces that this rank's body has ended, and waits until all others' have.
  std::optional<RankFailure> join_others() {
    const MutexLock lock(mutex_);
    send_control_to_all(kEnded, "");
    double end = 0.0;
    const double since = begin_to_wait();
    while (!all_others([](const MpiPeer& peer) { return peer.ended || peer.dead; })) {
      drive_progress(since);
      if (!fault_) continue;
      // Who computes hears of it at its next receive.
      if (end == 0.0) end = now_seconds() + options_.silence;
      if (now_seconds() >= end) break;
    }
    end_to_wait();
    return fault_;
  }

  [[nodiscard]] bool speaks() {
    const MutexLock lock(mutex_);
    return std::all_of(peers_.begin(), peers_.begin() + rank_,
                       [](const MpiPeer& peer) { return peer.dead; });
  }

 private:
  // MPI's are from 0 on.
  [[nodiscard]] int mpi_tag(int64_t tag) const {
    CHECK(tag >= -1 && tag < end_of_tags(), tag, highest_tag_);
    return static_cast<int>(tag + 1);
  }

  MpiOperation& claim_send(int64_t bytes) {
    const MutexLock lock(mutex_);
    return sends_.claim(bytes);
  }

  void begin_operation(MpiOperation& o) REQUIRES(mutex_) {
    o.handle = o.sends
                   ? table_.begin_send(o.channel, o.peer, o.tag, o.own.data(), std::ssize(o.own))
                   : table_.begin_receive(o.channel, o.peer, o.tag, o.data, o.bytes);
    CHECK(o.handle != nullptr, o.channel, o.peer, o.tag, o.bytes);
    active_.push_back(&o);
    last_moved_ = now_seconds();
  }

  void send_control(int to, Control what, const std::string& text) REQUIRES(mutex_) {
    send_own(kControl, to, what, text);
  }
  void send_own(int channel, int to, int tag, const std::string& text) REQUIRES(mutex_) {
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    MpiOperation& operation = *controls_.emplace_back(std::make_unique<MpiOperation>());
    operation.channel = channel;
    operation.peer = to;
    operation.tag = tag;
    operation.own.assign(first, first + text.size());
    operation.busy = true;
    begin_operation(operation);
  }
  void send_control_to_all(Control what, const std::string& text) REQUIRES(mutex_) {
    for (int to = 0; to < size_; ++to) {
      if (to != rank_ && !peers_[static_cast<size_t>(to)].dead) send_control(to, what, text);
    }
  }

  // Whether it is so with all other ranks.
  template <typename Is>
  bool all_others(Is is) REQUIRES(mutex_) {
    for (int other = 0; other < size_; ++other) {
      if (other != rank_ && !is(peers_[static_cast<size_t>(other)])) return false;
    }
    return true;
  }

  void wait_for_hellos() REQUIRES(mutex_) {
    const double since = begin_to_wait();
    while (!all_others([](const MpiPeer& peer) { return !peer.hello.empty() || peer.dead; }))
      drive_progress(since);
    end_to_wait();
  }

  void count_ranks_here() REQUIRES(mutex_) {
    for (int other = 0; other < size_; ++other) {
      if (other != rank_ && peers_[static_cast<size_t>(other)].hello != hello()) continue;
      rank_here_ += other < rank_ ? 1 : 0;
      ++ranks_here_;
    }
  }

  // For a receive. It may still be busy afterwards, where its sender died.
  void await_operation(MpiOperation& operation) REQUIRES(mutex_) {
    double end = 0.0;
    const double since = begin_to_wait();
    while (operation.busy && (end == 0.0 || now_seconds() < end)) {
      if ((fault_ || is_work_stopped()) && !operation.is_cancelled) {
        operation.is_cancelled = true;
        table_.cancel(operation.handle);  // and wait: MPI borrows the memory
      }
      if (fault_ && end == 0.0) end = now_seconds() + options_.silence;
      drive_progress(since);
    }
    end_to_wait();
  }

  // By another rank's failure.
  [[noreturn]] void throw_stopped() REQUIRES(mutex_) {
    throw Error(ErrorCode::kIo, fault_ ? fault_->what : "another rank has failed");
  }
  // Whether another rank has failed in what this one is at.
  [[nodiscard]] bool is_work_stopped() REQUIRES(mutex_) {
    return !all_others([](const MpiPeer& peer) { return !peer.has_failed_work(); });
  }

  // How the work has ended on every rank.
  std::vector<SettledWork> exchange_settled(const SettledWork& own) REQUIRES(mutex_) {
    send_control_to_all(kSettled, own.text(kLongestMessage));
    const double since = begin_to_wait();
    while (!fault_ && !all_others([](const MpiPeer& peer) { return !peer.settled.empty(); }))
      drive_progress(since);
    end_to_wait();
    if (fault_) throw_stopped();
    std::vector<SettledWork> all(peers_.size(), own);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      std::deque<SettledWork>& settled = peers_[static_cast<size_t>(rank)].settled;
      all[static_cast<size_t>(rank)] = settled.front();
      settled.pop_front();
    }
    return all;
  }

  // Takes what was sent and nobody received: up to each rank's mark, behind which it sends nothing.
  void drain_messages() REQUIRES(mutex_) {
    for (int to = 0; to < size_; ++to) send_own(kData, to, highest_tag_, "");
    const double since = begin_to_wait();
    std::vector<std::byte> bytes_of_nobody;
    for (int left = size_; left > 0 && !fault_;) {
      int from = 0, tag = 0;
      int64_t bytes = 0;
      if (!table_.probe(kData, &from, &tag, &bytes)) {
        drive_progress(since);
        continue;
      }
      bytes_of_nobody.resize(static_cast<size_t>(bytes));
      void* handle = table_.begin_receive(kData, from, tag, bytes_of_nobody.data(), bytes);
      const char* fault = nullptr;
      while (!table_.poll_operation(handle, &fault)) drive_progress(since);
      left -= tag == highest_tag_ ? 1 : 0;
    }
    end_to_wait();
  }

  void leave_together() REQUIRES(mutex_) {
    if (rank_ == 0) return send_control_to_all(kLeaving, "");
    const double since = begin_to_wait(), end = since + options_.silence;
    while (!peers_[0].leaving && !peers_[0].dead && now_seconds() < end) drive_progress(since);
    end_to_wait();
  }

  // A thread that waits: from when on.
  double begin_to_wait() REQUIRES(mutex_) {
    ++num_drivers_;
    return now_seconds();
  }
  void end_to_wait() REQUIRES(mutex_) {
    --num_drivers_;
    if (num_drivers_ == 0 && !active_.empty()) rested_.notify_all();
  }
  void drive_progress(double since) REQUIRES(mutex_) {
    if (make_progress()) return;
    const double now = now_seconds(), waited = now - since;
    if (waited > kEager) changed_.wait_until(mutex_, now + rest_after(waited));
  }
  static double rest_after(double waited) {
    return std::clamp(waited * kRestShare, kShortRest, kLongRest);
  }

  // Starts MPI and greets all ranks. False where MPI does not start.
  bool start_mpi() {
    const char* fault = table_.start(options_.chunk_bytes, &rank_, &size_);
    if (fault == nullptr) highest_tag_ = table_.highest_tag();
    const MutexLock lock(mutex_);
    if (fault != nullptr) start_fault_ = fault;
    const double now = now_seconds();
    peers_.assign(static_cast<size_t>(size_), MpiPeer{.last_heard = now});
    if (fault == nullptr) send_control_to_all(kHello, hello());
    started_ = true;
    changed_.notify_all();
    return fault == nullptr;
  }

  // The thread that computes nothing.
  void run_progress_thread() {
    name_thread("mpi");
    if (!start_mpi()) return;
    bool any_dead = false;
    {
      const MutexLock lock(mutex_);
      last_turn_ = now_seconds();
      while (!try_to_leave()) {
        if (!make_progress()) rested_.wait_until(mutex_, now_seconds() + rest());
      }
      any_dead = !all_others([](const MpiPeer& peer) { return !peer.dead; });
    }
    // MPI ends together with all ranks, or never.
    any_dead ? table_.abort(1) : table_.end();
  }

  double rest() REQUIRES(mutex_) {
    if (num_drivers_ > 0) return kDrivenRest;
    return active_.empty() ? kIdleRest : rest_after(now_seconds() - last_moved_);
  }

  // What nobody has received is dropped.
  bool try_to_leave() REQUIRES(mutex_) {
    if (!leaves_) return false;
    const bool tells =
        std::any_of(active_.begin(), active_.end(), [](const MpiOperation* operation) {
          return operation->channel == kControl && operation->tag != kAlive;
        });
    if (leave_by_ == 0.0) leave_by_ = now_seconds() + options_.silence;
    return !tells || now_seconds() > leave_by_;
  }

  // Whether anything came of it. Who waits hears of what the other thread saw.
  bool make_progress() REQUIRES(mutex_) {
    bool moved = retire_finished();
    moved = poll_controls() || moved;
    check_liveness();
    if (!moved) return false;
    last_moved_ = now_seconds();
    changed_.notify_all();
    return true;
  }

  bool retire_finished() REQUIRES(mutex_) {
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

  bool poll_controls() REQUIRES(mutex_) {
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

  void handle_control(int from, int tag, const std::string& text) REQUIRES(mutex_) {
    MpiPeer& peer = peers_[static_cast<size_t>(from)];
    peer.last_heard = now_seconds();
    if (tag == kHello) {
      peer.hello = text;
      peer.host = text.substr(0, text.find(' '));
    }
    if (tag == kEnded) peer.ended = true;
    if (tag == kLeaving) peer.leaving = true;
    if (tag == kSettled) peer.settled.push_back(SettledWork::of_text(text));
    if (tag != kFault || fault_ || text.empty()) return;
    fault_ = {static_cast<ErrorCode>(text[0]),
              fmt::format("{}: {}", peer.name(from), text.substr(1))};
  }

  // Tells others that this rank lives, and notes who has fallen silent.
  void check_liveness() REQUIRES(mutex_) {
    const double now = now_seconds();
    if (now - last_turn_ > kStopped) {  // not they
      for (MpiPeer& peer : peers_) peer.last_heard = now;
    }
    last_turn_ = now;
    if (now - last_beat_ >= kBeat) {
      last_beat_ = now;
      send_control_to_all(kAlive, "");
    }
    mark_silent_peers_dead(now);
  }
  void mark_silent_peers_dead(double now) REQUIRES(mutex_) {
    if (options_.waits_for_silent) return;
    for (int other = 0; other < size_; ++other) {
      MpiPeer& peer = peers_[static_cast<size_t>(other)];
      if (other == rank_ || peer.dead || now - peer.last_heard < options_.silence) continue;
      peer.dead = true;
      if (!fault_) fault_ = peer.silence_failure(other, options_.silence);
      changed_.notify_all();
    }
  }

  const MpiTable& table_;
  const MpiOptions options_;
  int rank_ = 0, size_ = 1, highest_tag_ = 0;  // written before started_
  int rank_here_ = 0, ranks_here_ = 0;         // by the constructor

  Mutex mutex_;
  CondVar changed_;  // for who waits
  CondVar rested_;   // for the thread that computes nothing
  bool started_ GUARDED_BY(mutex_) = false, leaves_ GUARDED_BY(mutex_) = false;
  std::string start_fault_ GUARDED_BY(mutex_);
  std::optional<RankFailure> fault_ GUARDED_BY(mutex_);
  std::vector<MpiPeer> peers_ GUARDED_BY(mutex_);
  std::vector<MpiOperation*> active_ GUARDED_BY(mutex_);
  SendPool sends_ GUARDED_BY(mutex_);
  MpiOperations controls_ GUARDED_BY(mutex_);
  MpiOperations abandoned_ GUARDED_BY(mutex_);  // receives that never end

  int num_drivers_ GUARDED_BY(mutex_) = 0;  // that wait
  double last_turn_ GUARDED_BY(mutex_) = 0.0;
  double last_moved_ GUARDED_BY(mutex_) = 0.0;
  double last_beat_ GUARDED_BY(mutex_) = 0.0;
  double leave_by_ GUARDED_BY(mutex_) = 0.0;

  std::jthread thread_;  // ends before all that it works with
};

MpiRanks::MpiRanks(const std::string& plugin, const MpiOptions& options) {
  CHECK(options.chunk_bytes >= 1 && options.chunk_bytes <= INT_MAX, options.chunk_bytes);
  link_ = std::make_unique<Link>(load_mpi_plugin(plugin), options);
}
MpiRanks::~MpiRanks() = default;

Comm& MpiRanks::comm() { return *link_; }
bool MpiRanks::speaks() const { return link_->speaks(); }

void MpiRanks::run(FunctionRef<void(Comm& comm)> body) {
  try {
    body(*link_);
  } catch (const Error& error) {
    link_->announce_failure(error.code, error.what());
  } catch (const std::exception& error) {
    link_->announce_failure(ErrorCode::kIo, error.what());
  }
  if (const std::optional<RankFailure> fault = link_->join_others())
    throw Error(fault->code, fault->what);
}

}  // namespace strata
