// SPDX-License-Identifier: Apache-2.0
// MpiLink: this process as a rank over MPI: what is on its way to the others and from there, at two
// levels whose messages never mix, and what ranks know of each other. Who waits makes progress
// itself, and rests longer the longer it waits. A thread of its own computes nothing: by it
// messages move while their rank computes, and every second the others hear that this rank lives. A
// send copies its bytes, a receive has none but the caller's. backend/mpi_comm.h has the Comms.
#pragma once
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/mpi_comm.h"
#include "backend/mpi_operation.h"
#include "backend/mpi_peer.h"
#include "backend/mpi_table.h"
#include "backend/settled_work.h"
#include "base/mutex.h"

namespace strata {

struct Interruption;

class MpiLink {
 public:
  // Starts MPI, and waits until all ranks have.
  MpiLink(const MpiTable& table, const MpiOptions& options);
  ~MpiLink();
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] int rank_here() const { return rank_here_; }
  [[nodiscard]] int ranks_here() const { return ranks_here_; }
  // The highest is the mark's (drain_messages()).
  [[nodiscard]] int64_t end_of_tags() const { return highest_tag_ - 1; }

  // What Comm's functions of these names do (backend/comm.h), for work of a level. While one waits,
  // `breaks` are run where they are due; null: there are none.
  void send_bytes(WorkLevel level, int to, int64_t tag, const void* data, int64_t bytes);
  void receive_bytes(WorkLevel level, int from, int64_t tag, void* data, int64_t bytes,
                     const Interruption* breaks);
  std::optional<RankFailure> settle(WorkLevel level, const std::optional<RankFailure>& own,
                                    const Interruption* breaks);
  void ask_for_break();
  [[nodiscard]] int64_t num_breaks_asked() const { return num_breaks_asked_; }
  // The first counts.
  void announce_failure(ErrorCode code, const std::string& what);
  [[nodiscard]] std::string find_silent_rank();

  // Announces that this rank's body has ended, and waits until all others' have.
  std::optional<RankFailure> join_others();
  // Whether all that are lower are dead.
  [[nodiscard]] bool speaks();

 private:
  enum Control : int;

  // What is on its way
  [[nodiscard]] int mpi_tag(int64_t tag) const;
  MpiOperation& claim_send(int64_t bytes);
  void begin_receive(MpiOperation& operation);
  void begin_operation(MpiOperation& o) REQUIRES(mutex_);
  void send_own(int channel, int to, int tag, const std::string& text) REQUIRES(mutex_);
  void send_control_to_all(Control what, const std::string& text) REQUIRES(mutex_);
  // For a receive. False: a break is due. It may still be busy afterwards, where its sender died.
  bool try_await_operation(MpiOperation& operation, const Interruption* breaks);
  bool retire_finished() REQUIRES(mutex_);

  // Work that ends
  SettledWork send_settled(WorkLevel level, const std::optional<RankFailure>& own);
  static Control settled_tag(WorkLevel level);
  // Waits for all. False: a break is due.
  bool try_await_settled(WorkLevel level, const Interruption* breaks);
  bool try_await_settled_locked(WorkLevel level, const Interruption* breaks) REQUIRES(mutex_);
  void exchange_settled(WorkLevel level) REQUIRES(mutex_);
  // Takes what was sent and nobody received: up to each rank's mark, behind which it sends nothing.
  void drain_messages(WorkLevel level) REQUIRES(mutex_);
  // By another rank's failure.
  [[noreturn]] void throw_stopped() REQUIRES(mutex_);

  // Who waits: from when on.
  double begin_to_wait() REQUIRES(mutex_);
  void end_to_wait() REQUIRES(mutex_);
  void drive_progress(double since) REQUIRES(mutex_);
  // Whether anything came of it. Who waits hears of what the other thread saw.
  bool make_progress() REQUIRES(mutex_);

  // The thread that computes nothing
  void run_progress_thread();
  // Starts MPI and greets all ranks. False where MPI does not start.
  bool start_mpi();
  double rest() REQUIRES(mutex_);
  bool try_to_leave() REQUIRES(mutex_);

  // What ranks know of each other
  void wait_for_hellos() REQUIRES(mutex_);
  void count_ranks_here() REQUIRES(mutex_);
  void leave_together() REQUIRES(mutex_);
  bool poll_controls() REQUIRES(mutex_);
  void handle_control(int from, int tag, const std::string& text) REQUIRES(mutex_);
  // Tells others that this rank lives, and notes who has fallen silent.
  void check_liveness() REQUIRES(mutex_);
  void mark_silent_peers_dead(double now) REQUIRES(mutex_);
  // Since when this rank's work waits with nothing of its own on its way; else none.
  [[nodiscard]] std::optional<double> waits_since() REQUIRES(mutex_);
  [[nodiscard]] std::string awaited_text() const REQUIRES(mutex_);
  void end_deadlock(double now) REQUIRES(mutex_);

  const MpiTable& table_;
  const MpiOptions options_;
  int rank_ = 0, size_ = 1, highest_tag_ = 0;  // written before started_
  int rank_here_ = 0, ranks_here_ = 0;         // by the constructor
  std::atomic<int64_t> num_breaks_asked_ = 0;

  Mutex mutex_;
  CondVar changed_;  // for who waits
  CondVar rested_;   // for the thread that computes nothing
  bool started_ GUARDED_BY(mutex_) = false, leaves_ GUARDED_BY(mutex_) = false;
  std::string start_fault_ GUARDED_BY(mutex_);
  std::optional<RankFailure> fault_ GUARDED_BY(mutex_);
  MpiPeers peers_ GUARDED_BY(mutex_);
  std::vector<MpiOperation*> active_ GUARDED_BY(mutex_);
  SendPool sends_ GUARDED_BY(mutex_);
  MpiOperations controls_ GUARDED_BY(mutex_);
  MpiOperations abandoned_ GUARDED_BY(mutex_);  // receives that never end

  int num_drivers_ GUARDED_BY(mutex_) = 0;  // that wait
  // What the rank's work waits for: a message, or (since when) the ends of others' work.
  const MpiOperation* awaited_ GUARDED_BY(mutex_) = nullptr;
  std::optional<double> awaits_ends_ GUARDED_BY(mutex_);
  double awake_since_ GUARDED_BY(mutex_) = 0.0;  // when it was last stopped
  double last_turn_ GUARDED_BY(mutex_) = 0.0;
  double last_moved_ GUARDED_BY(mutex_) = 0.0;
  double last_beat_ GUARDED_BY(mutex_) = 0.0;
  double leave_by_ GUARDED_BY(mutex_) = 0.0;

  std::jthread thread_;  // ends before all that it works with
};

}  // namespace strata
