// SPDX-License-Identifier: Apache-2.0
#include "backend/mpi_comm.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstddef>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "backend/mpi_table.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/trace.h"

namespace strata {
namespace {

constexpr int kData = 0, kControl = 1;  // channels
// Tags of the control channel: who it is, that it lives, that its body has ended or thrown, and
// that rank 0 leaves.
enum Control : int { kHello, kAlive, kEnded, kFault, kLeaving };

constexpr double kBeat = 1.0;             // seconds between two signs of life
constexpr double kStopped = 3.0;          // without a turn of ours: we were stopped, not they
constexpr int kEagerTurns = 200;          // turns that yield before those that sleep
constexpr double kShortRest = 50e-6;      // while something is on its way
constexpr double kLongRest = 2e-3;        // while nothing is
constexpr size_t kLongestMessage = 3000;  // of a fault: sent at once, whoever listens

// What is on its way to another rank, or from there.
struct Operation {
  int channel = kData;
  bool sends = true;
  int peer = 0, tag = 0;
  void* data = nullptr;
  int64_t bytes = 0;
  std::vector<std::byte> own = {};    // of a send
  std::atomic<bool> cancels = false;  // asked for by its receiver
  bool busy = false;                  // until it has ended
  std::string fault = {};
  // Of the thread that calls MPI.
  void* handle = nullptr;
  bool is_cancelled = false;
};

struct RankFault {
  ErrorCode code = ErrorCode::kIo;
  std::string what;
};

std::string host_name() {
  std::array<char, 256> name = {};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

const MpiTable& load_table(const std::string& plugin) {
  // RTLD_GLOBAL is for libmpi, whose own plugins look for its symbols there.
  void* library = ::dlopen(plugin.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("ranks need MPI: {}; install openmpi-bin, and build Strata where "
                            "libopenmpi-dev is installed",
                            ::dlerror()));
  }
  using Get = const MpiTable* (*)();
  const auto get = reinterpret_cast<Get>(::dlsym(library, kMpiTableSymbol));
  const MpiTable* table = get == nullptr ? nullptr : get();
  if (table == nullptr || table->version != kMpiTableVersion) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("ranks need MPI: {} belongs to another build of Strata", plugin));
  }
  return *table;
}

}  // namespace

class MpiRanks::Link : public Comm {
 public:
  Link(const MpiTable& table, const MpiOptions& options)
      : table_(table), options_(options), thread_([this] { work(); }) {
    const MutexLock lock(mutex_);
    while (!started_) changed_.wait(mutex_);
    if (start_fault_.empty()) return;
    throw Error(ErrorCode::kIo, "MPI does not start: " + start_fault_);
  }
  ~Link() override {
    leave();
    const MutexLock lock(mutex_);
    leaves_ = true;
    changed_.notify_all();
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) override {
    const auto* first = static_cast<const std::byte*>(data);
    Operation& operation = take({to, tag});
    if (std::ssize(operation.own) < bytes) std::vector<std::byte>().swap(operation.own);
    operation.own.assign(first, first + bytes);
    operation.peer = to;
    operation.tag = mpi_tag(tag);
    post(operation);
  }

  void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) override {
    Operation operation;
    operation.sends = false;
    operation.peer = from;
    operation.tag = mpi_tag(tag);
    operation.data = data;
    operation.bytes = bytes;
    operation.busy = true;
    post(operation);
    const MutexLock lock(mutex_);
    while (operation.busy) {
      if (fault_) operation.cancels = true;  // and wait: MPI borrows the memory
      changed_.wait(mutex_);
    }
    if (operation.cancels) throw Error(ErrorCode::kIo, "another rank has failed");
    CHECK(operation.fault.empty(), operation.fault, from, tag, bytes);
  }

  // The first counts.
  void fail(ErrorCode code, const std::string& what) {
    const MutexLock lock(mutex_);
    if (fault_) return;
    fault_ = {code, what};
    std::string text(1, static_cast<char>(code));
    text += what.substr(0, kLongestMessage);
    tell_all(kFault, text);
  }

  // That this rank's body has ended, and all others' too.
  std::optional<RankFault> end_together() {
    const MutexLock lock(mutex_);
    tell_all(kEnded, "");
    double end = 0.0;
    while (!all_of([](const Peer& peer) { return peer.ended || peer.dead; })) {
      if (!fault_) {
        changed_.wait(mutex_);
        continue;
      }
      // Who computes hears of it at its next receive.
      if (end == 0.0) end = now_seconds() + options_.silence;
      if (!changed_.wait_until(mutex_, end) && now_seconds() >= end) break;
    }
    return fault_;
  }

  [[nodiscard]] bool speaks() {
    const MutexLock lock(mutex_);
    return std::all_of(peers_.begin(), peers_.begin() + rank_,
                       [](const Peer& peer) { return peer.dead; });
  }

 private:
  struct Peer {
    std::string host = "?";
    double last_heard = 0.0;
    bool ended = false, dead = false, leaving = false;
  };

  static int mpi_tag(int64_t tag) {
    CHECK(tag >= -1 && tag < INT_MAX, tag);
    return static_cast<int>(tag + 1);
  }

  // A send's, to be used again, with its buffer, by those of the same receiver and tag.
  Operation& take(std::pair<int, int64_t> to_and_tag) {
    const MutexLock lock(mutex_);
    std::vector<std::unique_ptr<Operation>>& operations = sends_[to_and_tag];
    for (const auto& operation : operations) {
      if (operation->busy) continue;
      operation->busy = true;
      return *operation;
    }
    operations.push_back(std::make_unique<Operation>());
    operations.back()->busy = true;
    return *operations.back();
  }

  void post(Operation& operation) {
    const MutexLock lock(mutex_);
    post_locked(operation);
  }
  void post_locked(Operation& operation) REQUIRES(mutex_) {
    posted_.push_back(&operation);
    changed_.notify_all();
  }

  void tell(int to, Control what, const std::string& text) REQUIRES(mutex_) {
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    controls_.push_back(std::make_unique<Operation>());
    Operation& operation = *controls_.back();
    operation.channel = kControl;
    operation.peer = to;
    operation.tag = what;
    operation.own.assign(first, first + text.size());
    operation.busy = true;
    post_locked(operation);
  }
  void tell_all(Control what, const std::string& text) REQUIRES(mutex_) {
    for (int to = 0; to < size_; ++to) {
      if (to != rank_ && !peers_[static_cast<size_t>(to)].dead) tell(to, what, text);
    }
  }

  // Of the others.
  template <typename Is>
  bool all_of(Is is) REQUIRES(mutex_) {
    for (int other = 0; other < size_; ++other) {
      if (other != rank_ && !is(peers_[static_cast<size_t>(other)])) return false;
    }
    return true;
  }

  void leave() {
    const MutexLock lock(mutex_);
    if (rank_ == 0) return tell_all(kLeaving, "");
    const double end = now_seconds() + options_.silence;
    while (!peers_[0].leaving && !peers_[0].dead && now_seconds() < end)
      changed_.wait_until(mutex_, end);
  }

  // From here on: the thread that calls MPI.
  void work() {
    name_thread("mpi");
    const char* fault = table_.start(options_.chunk_bytes, &rank_, &size_);
    {
      const MutexLock lock(mutex_);
      if (fault != nullptr) start_fault_ = fault;
      const double now = now_seconds();
      peers_.assign(static_cast<size_t>(size_), Peer{.last_heard = now});
      if (fault == nullptr) tell_all(kHello, host_name());
      started_ = true;
      changed_.notify_all();
    }
    if (fault != nullptr) return;
    last_turn_ = now_seconds();
    while (turn()) {
    }
    bool any_dead = false;
    {
      const MutexLock lock(mutex_);
      any_dead = !all_of([](const Peer& peer) { return !peer.dead; });
    }
    // MPI ends together with all ranks, or never.
    any_dead ? table_.abort(1) : table_.end();
  }

  bool turn() {
    bool moved = begin_posted();
    moved |= look_at_active();
    moved |= hear();
    beat();
    {
      const MutexLock lock(mutex_);
      if (leaves_ && posted_.empty()) {
        // What nobody has received is dropped.
        const bool tells =
            std::any_of(active_.begin(), active_.end(), [](const Operation* operation) {
              return operation->channel == kControl && operation->tag != kAlive;
            });
        if (leave_by_ == 0.0) leave_by_ = now_seconds() + options_.silence;
        if (!tells || now_seconds() > leave_by_) return false;
      }
      idle_turns_ = moved ? 0 : idle_turns_ + 1;
      if (idle_turns_ > kEagerTurns && posted_.empty()) {
        changed_.wait_until(mutex_, now_seconds() + (active_.empty() ? kLongRest : kShortRest));
        return true;
      }
    }
    if (!moved) std::this_thread::yield();
    return true;
  }

  bool begin_posted() {
    {
      const MutexLock lock(mutex_);
      starting_.swap(posted_);
    }
    for (Operation* o : starting_) {
      o->handle = o->sends
                      ? table_.send(o->channel, o->peer, o->tag, o->own.data(), std::ssize(o->own))
                      : table_.receive(o->channel, o->peer, o->tag, o->data, o->bytes);
      CHECK(o->handle != nullptr, o->channel, o->peer, o->tag, o->bytes);
      active_.push_back(o);
    }
    const bool any = !starting_.empty();
    starting_.clear();
    return any;
  }

  bool look_at_active() {
    const auto is_over = [&](Operation* operation) {
      if (operation->cancels && !operation->is_cancelled) {
        operation->is_cancelled = true;
        table_.cancel(operation->handle);
      }
      const char* fault = nullptr;
      if (!table_.ended(operation->handle, &fault)) return false;
      const MutexLock lock(mutex_);
      if (fault != nullptr) operation->fault = fault;
      operation->busy = false;
      return true;
    };
    // In order: those of one sender and tag.
    if (std::erase_if(active_, is_over) == 0) return false;
    const MutexLock lock(mutex_);
    std::erase_if(controls_, [](const auto& operation) { return !operation->busy; });
    changed_.notify_all();
    return true;
  }

  bool hear() {
    int from = 0, tag = 0;
    int64_t bytes = 0;
    bool any = false;
    while (table_.waiting(kControl, &from, &tag, &bytes)) {
      any = true;
      std::string text(static_cast<size_t>(bytes), '\0');
      void* handle = table_.receive(kControl, from, tag, text.data(), bytes);
      const char* fault = nullptr;
      while (!table_.ended(handle, &fault)) {  // it has come: small ones are sent whole
      }
      const MutexLock lock(mutex_);
      note(from, tag, text);
      changed_.notify_all();
    }
    return any;
  }

  void note(int from, int tag, const std::string& text) REQUIRES(mutex_) {
    Peer& peer = peers_[static_cast<size_t>(from)];
    peer.last_heard = now_seconds();
    if (tag == kHello) peer.host = text;
    if (tag == kEnded) peer.ended = true;
    if (tag == kLeaving) peer.leaving = true;
    if (tag != kFault || fault_ || text.empty()) return;
    fault_ = {static_cast<ErrorCode>(text[0]),
              fmt::format("rank {} ({}): {}", from, peer.host, text.substr(1))};
  }

  void beat() {
    const double now = now_seconds();
    const bool was_stopped = now - last_turn_ > kStopped;
    last_turn_ = now;
    const MutexLock lock(mutex_);
    if (was_stopped) {
      for (Peer& peer : peers_) peer.last_heard = now;
    }
    if (now - last_beat_ >= kBeat) {
      last_beat_ = now;
      tell_all(kAlive, "");
    }
    for (int other = 0; other < size_; ++other) {
      Peer& peer = peers_[static_cast<size_t>(other)];
      if (other == rank_ || peer.dead || now - peer.last_heard < options_.silence) continue;
      peer.dead = true;
      if (!fault_) {
        fault_ = {
            ErrorCode::kIo,
            fmt::format("rank {} ({}) has been silent for {:.0f} s: it was stopped or killed, "
                        "or its link is down",
                        other, peer.host, options_.silence)};
      }
      changed_.notify_all();
    }
  }

  const MpiTable& table_;
  const MpiOptions options_;
  int rank_ = 0, size_ = 1;  // written before started_

  Mutex mutex_;
  CondVar changed_;
  bool started_ GUARDED_BY(mutex_) = false;
  bool leaves_ GUARDED_BY(mutex_) = false;
  std::string start_fault_ GUARDED_BY(mutex_);
  std::optional<RankFault> fault_ GUARDED_BY(mutex_);
  std::vector<Peer> peers_ GUARDED_BY(mutex_);
  std::vector<Operation*> posted_ GUARDED_BY(mutex_);
  std::map<std::pair<int, int64_t>, std::vector<std::unique_ptr<Operation>>> sends_
      GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Operation>> controls_ GUARDED_BY(mutex_);

  // Of the thread that calls MPI.
  std::vector<Operation*> starting_, active_;
  double last_turn_ = 0.0, last_beat_ = 0.0, leave_by_ = 0.0;
  int idle_turns_ = 0;

  std::jthread thread_;  // ends before all that it works with
};

MpiRanks::MpiRanks(const std::string& plugin, const MpiOptions& options) {
  CHECK(options.chunk_bytes >= 1 && options.chunk_bytes <= INT_MAX, options.chunk_bytes);
  link_ = std::make_unique<Link>(load_table(plugin), options);
}
MpiRanks::~MpiRanks() = default;

Comm& MpiRanks::comm() { return *link_; }
bool MpiRanks::speaks() const { return link_->speaks(); }

void MpiRanks::run(FunctionRef<void(Comm& comm)> body) {
  try {
    body(*link_);
  } catch (const Error& error) {
    link_->fail(error.code, error.what());
  } catch (const std::exception& error) {
    link_->fail(ErrorCode::kIo, error.what());
  }
  if (const std::optional<RankFault> fault = link_->end_together())
    throw Error(fault->code, fault->what);
}

}  // namespace strata
