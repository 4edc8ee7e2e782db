// SPDX-License-Identifier: Apache-2.0
// Worker: one thread for jobs that read or write files, so that the I/O thread need not wait.
// Tenants take turns, and a tenant's jobs run in order: many jobs of one delay its own alone.
//   Worker worker({.name = "disk"});  worker.post("alice", job);
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <thread>

#include "base/mutex.h"

namespace strata::server {

// Runs a job of some thread's; what it throws is logged, and ends nothing else.
void run_logging_faults(std::string_view thread, const std::function<void()>& job) noexcept;

class Worker {
 public:
  using Job = std::function<void()>;
  using Piece = std::function<bool()>;
  struct Options {
    std::string name = "disk";  // of the thread
    // How many jobs of one tenant try_post() lets wait.
    size_t most_waiting = std::numeric_limits<size_t>::max();
    bool drops_at_stop = false;  // what has not begun then; else it is run
  };

  Worker() : Worker(Options()) {}
  explicit Worker(Options options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread. A job tells whom it concerns of its own faults; what it throws is logged and ends
  // nothing else. After stop() it runs at once, or is dropped. "": the server's own.
  void post(const std::string& tenant, Job job);
  // False when as many of this tenant's wait as may.
  [[nodiscard]] bool try_post(const std::string& tenant, Job job);
  // A job in pieces: behind one that returns true come the other tenants' turns, then the next one.
  [[nodiscard]] bool try_post_pieces(const std::string& tenant, Piece piece);
  // Runs what is queued, or drops it, and joins. The destructor does it too.
  void stop();

 private:
  void run_jobs_until_stopped();
  [[nodiscard]] Piece take_next_job(const std::string& tenant) REQUIRES(mutex_);
  void put_back(const std::string& tenant, Piece job);
  // Queues a job; one that comes when the worker stops runs here, unless such are dropped.
  void enqueue_job(const std::string& tenant, Piece job);
  static bool run_piece(const Piece& job) noexcept;

  const Options options_;
  Mutex mutex_;
  CondVar wake_;
  std::map<std::string, std::deque<Piece>> jobs_ GUARDED_BY(mutex_);  // by tenant; none is empty
  std::deque<std::string> turns_ GUARDED_BY(mutex_);  // tenants with jobs, each once
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace strata::server
