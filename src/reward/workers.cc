// SPDX-License-Identifier: Apache-2.0
#include "reward/workers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/ascii.h"
#include "base/clock.h"
#include "base/file_io.h"
#include "base/files.h"
#include "base/say.h"
#include "base/spawn.h"

namespace strata::reward {
namespace {

constexpr size_t kMostAnswer = 4096;  // bytes of a line that is to be a number
constexpr size_t kShown = 80;         // of one that is none
constexpr int64_t kTail = 2048;       // bytes of the log that a failure shows
// Seconds that a worker has to end: one that has closed its output, and all that read to the end of
// their input, before their groups are killed; and how often it is looked at, in microseconds.
constexpr double kGrace = 0.1, kGraceAtEnd = 1;
constexpr useconds_t kLookAgain = 1000;

std::optional<double> parse_number(std::string_view text) {
  const std::string_view number = trimmed(text);
  double value = 0;
  const auto [end, fault] = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool is_whole = fault == std::errc() && end == number.data() + number.size();
  return is_whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::string describe_exit(int status) {
  if (WIFEXITED(status)) return fmt::format("it ended with exit code {}", WEXITSTATUS(status));
  return fmt::format("signal {} ended it", WTERMSIG(status));
}

// The last lines of a file.
std::string read_tail(const std::string& path) {
  if (path.empty() || !file_exists(path)) return {};
  const ReadOnlyFile file(path);
  std::string text(static_cast<size_t>(std::min(file.size(), kTail)), '\0');
  file.read_at(file.size() - std::ssize(text), std::as_writable_bytes(std::span(text)));
  return text;
}

// The two ends of a pipe, of which a child gets one by number.
struct Pipe {
  explicit Pipe(const char* what) {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_io("--reward", what);
  }
  std::array<int, 2> ends = {};  // to read, to write
};

}  // namespace

struct RewardWorkers::Worker {
  int pid = 0;  // 0: none runs
  int to = -1, from = -1;
  std::optional<Line> line;  // that it is at
  size_t num_written = 0;    // bytes of the line
  std::string answer;        // so far
  double deadline = 0;

  void close_pipes() {
    for (int* own : {&to, &from}) {
      if (*own >= 0) ::close(*own);
      *own = -1;
    }
  }
  [[nodiscard]] bool is_written() const { return !line || num_written == line->text.size(); }
};

RewardWorkers::RewardWorkers(WorkerOptions options) : options_(std::move(options)) {
  ignore_closed_pipes();
  for (int64_t i = 0; i < options_.count; ++i) workers_.push_back(std::make_unique<Worker>());
}

RewardWorkers::~RewardWorkers() {
  for (const auto& worker : workers_) worker->close_pipes();
  const double deadline = now_seconds() + kGraceAtEnd;
  for (const auto& worker : workers_) end(*worker, deadline - now_seconds());
}

void RewardWorkers::submit(size_t id, std::string line) {
  line += '\n';
  waiting_.push_back({id, std::move(line)});
}

bool RewardWorkers::is_idle() const {
  return waiting_.empty() && std::ranges::none_of(workers_, [](const auto& worker) {
           return worker->line.has_value();
         });
}

std::vector<Rated> RewardWorkers::take_rated() { return std::exchange(rated_, {}); }

void RewardWorkers::run(double seconds) {
  give_lines();
  wait_for_any(rated_.empty() ? seconds : 0);
  for (const auto& worker : workers_) check_time(*worker);
  give_lines();
}

void RewardWorkers::start(Worker& worker) {
  const Pipe in("pipe"), out("pipe");
  worker.to = in.ends[1];
  worker.from = out.ends[0];
  for (const int own : {worker.to, worker.from}) ::fcntl(own, F_SETFL, O_NONBLOCK);
  const OpenFile childs_in(in.ends[0]), childs_out(out.ends[1]);
  const int fault =
      spawn_in_group("/bin/sh", {"/bin/sh", "-c", options_.command},
                     {.in = childs_in.fd, .out = childs_out.fd, .log = options_.log}, worker.pid);
  if (fault != 0)
    throw Error(ErrorCode::kIo, fmt::format("--reward: /bin/sh: {}", std::strerror(fault)));
  worker.answer.clear();
}

std::string RewardWorkers::end(Worker& worker, double grace) {
  worker.close_pipes();
  if (worker.pid == 0) return {};
  int status = 0;
  const double deadline = now_seconds() + grace;
  bool has_ended = false;
  do {
    has_ended = ::waitpid(worker.pid, &status, WNOHANG) == worker.pid;
    if (has_ended) break;
    ::usleep(kLookAgain);
  } while (now_seconds() < deadline);
  ::kill(-worker.pid, SIGKILL);
  if (!has_ended) ::waitpid(worker.pid, &status, 0);
  worker.pid = 0;
  return describe_exit(status);
}

void RewardWorkers::give_lines() {
  for (const auto& worker : workers_) {
    if (worker->line || waiting_.empty()) continue;
    if (worker->pid == 0) start(*worker);
    worker->line = std::move(waiting_.front());
    waiting_.pop_front();
    worker->num_written = 0;
    worker->deadline = now_seconds() + options_.timeout_seconds;
    write_line(*worker);
  }
}

void RewardWorkers::wait_for_any(double seconds) {
  std::vector<pollfd> polled;
  for (const auto& worker : workers_) {
    polled.push_back({worker->from, POLLIN, 0});  // poll passes over what is below 0
    polled.push_back({worker->is_written() ? -1 : worker->to, POLLOUT, 0});
    if (worker->line) seconds = std::min(seconds, worker->deadline - now_seconds());
  }
  const int milliseconds = static_cast<int>(std::ceil(1000 * std::max(0.0, seconds)));
  if (::poll(polled.data(), polled.size(), milliseconds) < 0 && errno != EINTR)
    fail_io("--reward", "poll");
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = *workers_[i];
    if (polled[2 * i + 1].revents != 0 && worker.pid != 0) write_line(worker);
    if (polled[2 * i].revents != 0 && worker.pid != 0) read_answer(worker);
  }
}

void RewardWorkers::write_line(Worker& worker) {
  while (!worker.is_written()) {
    const std::string_view left = std::string_view(worker.line->text).substr(worker.num_written);
    const ssize_t count = ::write(worker.to, left.data(), left.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0) return leave_out(worker, end(worker, kGrace));  // nobody reads
    worker.num_written += static_cast<size_t>(count);
  }
}

void RewardWorkers::read_answer(Worker& worker) {
  std::array<char, kMostAnswer> piece = {};
  const ssize_t count = ::read(worker.from, piece.data(), piece.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count <= 0) {
    // Without a line it has ended between two, which costs nobody anything.
    const std::string how = end(worker, kGrace);
    if (worker.line) leave_out(worker, how);
    return;
  }
  worker.answer.append(piece.data(), static_cast<size_t>(count));
  if (worker.answer.find('\n') != std::string::npos || worker.answer.size() > kMostAnswer)
    take_answer(worker);
}

void RewardWorkers::take_answer(Worker& worker) {
  const std::string answer = std::exchange(worker.answer, {});
  const size_t newline = answer.find('\n');
  const std::optional<double> value = parse_number(answer.substr(0, newline));
  // What is behind the line answers nothing that was asked.
  if (!worker.line || !worker.is_written() || !value || newline + 1 != answer.size()) {
    end(worker, /*grace=*/0);
    if (!worker.line) return;
    return leave_out(worker, fmt::format("it wrote '{}', want a line with a finite number",
                                         trimmed(answer).substr(0, kShown)));
  }
  rated_.push_back({.id = worker.line->id, .value = value});
  worker.line.reset();
  num_faults_ = 0;
}

void RewardWorkers::check_time(Worker& worker) {
  if (!worker.line || now_seconds() < worker.deadline) return;
  end(worker, /*grace=*/0);
  leave_out(worker, fmt::format("no line in {:g} s", options_.timeout_seconds));
}

void RewardWorkers::leave_out(Worker& worker, const std::string& fault) {
  rated_.push_back({.id = worker.line->id, .fault = fault});
  worker.line.reset();
  if (++num_faults_ >= kMostFaults) fail_in_a_row(fault);
}

void RewardWorkers::fail_in_a_row(const std::string& last) const {
  const std::string tail = read_tail(options_.log);
  throw RewardFailed(fmt::format(
      "--reward {}: {} answers in a row got no number; of the last: {}. It gets a line of JSON for "
      "each answer and writes a line with a number, at once (strata data --reward tries it){}{}",
      options_.command, kMostFaults, last,
      tail.empty() ? "" : fmt::format("; the last of {}:\n", options_.log), trimmed(tail)));
}

}  // namespace strata::reward
