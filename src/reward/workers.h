// SPDX-License-Identifier: Apache-2.0
// RewardWorkers: processes that say how good answers are. Each runs the command by /bin/sh in a
// process group of its own, stays, reads a line for each answer and writes a line with a number.
// A line that is no finite number, an exit, or no line in time leaves that answer without a number,
// and the worker's group is ended and another one started for the next line. Nothing here blocks
// but run(), and nothing is started before there is a line. One thread; the process ignores SIGPIPE
// from the first one on.
//   RewardWorkers workers({.command = "python3 reward.py", .count = 2});
//   workers.submit(0, line);
//   while (!workers.is_idle()) workers.run(/*seconds=*/1);
//   for (const Rated& rated : workers.take_rated()) ...;
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace strata::reward {

// What came of an answer.
struct Rated {
  size_t id = 0;
  std::optional<double> value = {};
  std::string fault = {};  // why there is no value
};

// So many answers in a row got no number that the command cannot be right.
struct RewardFailed : Error {
  explicit RewardFailed(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

struct WorkerOptions {
  std::string command = {};
  int64_t count = 1;
  double timeout_seconds = 30;  // for an answer
  std::string log = {};         // file that stderr goes behind; empty: it is ours
};

class RewardWorkers {
 public:
  static constexpr int64_t kMostFaults = 10;  // in a row

  explicit RewardWorkers(WorkerOptions options);
  ~RewardWorkers();  // ends the process groups: their input ends, and soon they are killed
  RewardWorkers(const RewardWorkers&) = delete;
  RewardWorkers& operator=(const RewardWorkers&) = delete;

  // Queues a line, which ends without a newline.
  void submit(size_t id, std::string line);
  // Gives lines to workers that are free and takes what they wrote; waits for that, at most so
  // long. Throws RewardFailed once kMostFaults answers in a row got no number.
  void run(double seconds);
  // Every line that was submitted is rated.
  [[nodiscard]] bool is_idle() const;
  // Those that were rated since the last call, in any order.
  std::vector<Rated> take_rated();

 private:
  struct Worker;
  struct Line {
    size_t id = 0;
    std::string text = {};
  };

  void start(Worker& worker);
  // Ends its group, once it has had so many seconds to end by itself, and says how it ended.
  std::string end(Worker& worker, double grace);
  void give_lines();
  void wait_for_any(double seconds);
  void write_line(Worker& worker);
  void read_answer(Worker& worker);
  void take_answer(Worker& worker);
  void check_time(Worker& worker);
  void leave_out(Worker& worker, const std::string& fault);
  void fail_in_a_row(const std::string& last) const;

  WorkerOptions options_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::deque<Line> waiting_;
  std::vector<Rated> rated_;
  int64_t num_faults_ = 0;  // in a row
};

}  // namespace strata::reward
