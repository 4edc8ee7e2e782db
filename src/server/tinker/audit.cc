// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/audit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"
#include "server/store/wall_clock.h"
#include "text/json_reader.h"
#include "text/unicode/unicode.h"

namespace strata::server {
namespace {

constexpr size_t kMaxQueued = 4 << 20;  // bytes of lines that wait for the disk
constexpr size_t kMaxObject = 512;      // bytes

constexpr off_t kMaxTail = 16 << 10;  // holds any line

// Without waiting for a reader, should it be a pipe; its writes wait again.
int open_log(const std::string& path) {
  const int file =
      ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (file >= 0) ::fcntl(file, F_SETFL, O_APPEND);
  return file;
}

// Where the lines of a file end; of a pipe, nothing.
struct Tail {
  bool is_whole = true;  // the last line has its end
  int64_t number = 0;    // of the last whole line
};

// What stands between `before` and the next quote or comma of the last line that has it.
std::string_view last_field(std::string_view text, std::string_view before) {
  const size_t at = text.rfind(before);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = text.substr(at + before.size());
  return rest.substr(0, rest.find_first_of("\","));
}

// The last bytes of a regular file that has some; of anything else, nothing.
std::optional<std::string> read_last_bytes(const std::string& path) {
  std::optional<std::string> text;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info = {};
  if (file >= 0 && ::fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
    text.emplace(static_cast<size_t>(std::min(info.st_size, kMaxTail)), '\0');
    const ssize_t count =
        ::pread(file, text->data(), text->size(), info.st_size - static_cast<off_t>(text->size()));
    text->resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  }
  if (file >= 0) ::close(file);
  return text;
}

Tail read_tail(const std::string& path) {
  Tail tail;
  const std::optional<std::string> text = read_last_bytes(path);
  if (!text) return tail;
  tail.is_whole = text->ends_with('\n');
  const std::string_view lines = std::string_view(*text).substr(0, text->rfind('\n') + 1);
  const std::string_view number = last_field(lines, "\"seq\":");
  std::from_chars(number.data(), number.data() + number.size(), tail.number);
  return tail;
}

// DEL and U+0080 to U+009F, which a terminal may obey; JSON escapes those below a space alone.
bool has_terminal_controls(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (text[i] == 0x7f || (text[i] == '\xc2' && next >= 0x80 && next < 0xa0)) return true;
  }
  return false;
}

// The beginning of a name, which may hold any bytes, as a JSON string that no terminal obeys.
std::string quote_shortened(std::string_view text) {
  text = text.substr(0, kMaxObject);
  if (text::is_valid_utf8(text) && !has_terminal_controls(text)) return text::json_quote(text);
  std::string plain(text);
  for (char& c : plain) {
    if (static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return text::json_quote(plain);
}

// Without its number and its end.
std::string unfinished_json(const AuditLine& line) {
  return fmt::format(
      "{{\"time\":\"{}\",\"tenant\":{},\"key\":{},\"address\":{},\"action\":{},\"object\":{},"
      "\"status\":{}",
      rfc3339(line.time), quote_shortened(line.tenant), quote_shortened(line.key_id),
      quote_shortened(line.address), quote_shortened(line.action), quote_shortened(line.object),
      line.status);
}

}  // namespace

struct AuditLog::Writer {
  explicit Writer(std::string name) : path(std::move(name)), file(open_log(path)) {
    if (file < 0) {  // at once: errno is of this open
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--audit {}: {}", path, std::strerror(errno)));
    }
    const Tail tail = read_tail(path);
    is_whole = tail.is_whole;
    number = tail.number + (is_whole ? 0 : 1);  // a line that was cut had one too: it is missed
    warn_of_open_modes();
  }
  ~Writer() { ::close(file); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  struct Job {
    std::string text;    // empty: reopen
    int64_t number = 0;  // of the line
  };
  void warn_of_open_modes() const;
  void queue(Job job);
  [[nodiscard]] Job take_first_job() REQUIRES(mutex);
  void write_jobs_until_stopped();
  void reopen();
  void write_line(const Job& job);
  // Logs where trouble begins and where it ends, not at each line between.
  void log_trouble_change(bool is_written, int fault);
  [[nodiscard]] bool append(const std::string& text);

  const std::string path;
  Mutex mutex;
  CondVar wake;
  std::deque<Job> jobs GUARDED_BY(mutex);
  size_t queued_bytes GUARDED_BY(mutex) = 0;
  Counts counts GUARDED_BY(mutex);
  int64_t number GUARDED_BY(mutex) = 0;  // of the last line, written or not
  bool is_stopping GUARDED_BY(mutex) = false;
  bool is_done GUARDED_BY(mutex) = false;  // the thread
  // What the writing thread alone touches.
  int file;
  bool is_whole = true;  // the last line has its end
  bool is_failing = false;
};

// It says who does what, and when.
void AuditLog::Writer::warn_of_open_modes() const {
  struct stat info = {};
  if (file < 0 || ::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return;
  if ((info.st_mode & 0077) == 0) return;
  log(LogLevel::kWarning, fmt::format("--audit {}: mode {:04o} lets others read it; chmod 600",
                                      path, static_cast<unsigned>(info.st_mode & 07777)));
}

AuditLog::AuditLog(std::string path) : writer_(std::make_shared<Writer>(std::move(path))) {
  std::thread([writer = writer_] { writer->write_jobs_until_stopped(); }).detach();
}

AuditLog::~AuditLog() {
  Writer& writer = *writer_;
  const MutexLock lock(writer.mutex);
  writer.is_stopping = true;
  writer.wake.notify_all();
  const double end = now_seconds() + kPatience;
  while (!writer.is_done && writer.wake.wait_until(writer.mutex, end)) {
  }
  if (writer.is_done) return;
  // One is in the write that hangs.
  log(LogLevel::kError, fmt::format("audit: {}: the disk does not answer; {} lines are lost",
                                    writer.path, writer.jobs.size() + 1));
}

void AuditLog::add(AuditLine line) { writer_->queue({unfinished_json(line)}); }

void AuditLog::reopen() { writer_->queue({}); }

// A line that finds no space is counted as dropped.
void AuditLog::Writer::queue(Job job) {
  const MutexLock lock(mutex);
  if (!job.text.empty()) job.number = ++number;  // also of one that is dropped: it is missed
  if (queued_bytes + job.text.size() > kMaxQueued) {
    ++counts.dropped;
    return;
  }
  queued_bytes += job.text.size();
  jobs.push_back(std::move(job));
  wake.notify_all();
}

AuditLog::Counts AuditLog::counts() const {
  const MutexLock lock(writer_->mutex);
  return writer_->counts;
}

AuditLog::Writer::Job AuditLog::Writer::take_first_job() {
  Job job = std::move(jobs.front());
  jobs.pop_front();
  queued_bytes -= job.text.size();
  return job;
}

void AuditLog::Writer::write_jobs_until_stopped() {
  mutex.lock();
  for (;;) {
    while (!is_stopping && jobs.empty()) wake.wait(mutex);
    if (jobs.empty()) break;
    Job job = take_first_job();
    mutex.unlock();
    if (job.text.empty()) {
      reopen();
    } else {
      write_line(job);
    }
    mutex.lock();
  }
  is_done = true;
  wake.notify_all();
  mutex.unlock();
}

void AuditLog::Writer::reopen() {
  const int next = open_log(path);
  if (next < 0) {
    log(LogLevel::kError,
        fmt::format("audit: {}: {}; the old file stays in use", path, std::strerror(errno)));
    return;
  }
  ::close(file);
  file = next;
  is_whole = read_tail(path).is_whole;
}

// Once for each time of trouble, and its end, not for each line.
void AuditLog::Writer::log_trouble_change(bool is_written, int fault) {
  if (!is_written && !is_failing)
    log(LogLevel::kError,
        fmt::format("audit: {}: {}; lines are dropped and counted (strata_audit_lines_total)", path,
                    std::strerror(fault)));
  if (is_written && is_failing) log(LogLevel::kWarning, "audit: lines are written again");
  is_failing = !is_written;
}

void AuditLog::Writer::write_line(const Job& job) {
  const bool is_written = append(fmt::format("{},\"seq\":{}}}\n", job.text, job.number));
  const int fault = errno;
  log_trouble_change(is_written, fault);
  const MutexLock lock(mutex);
  ++(is_written ? counts.written : counts.dropped);
}

// A line that a full disk cut is ended before the next one begins.
bool AuditLog::Writer::append(const std::string& text) {
  const std::string whole = (is_whole ? "" : "\n") + text;
  std::string_view rest = whole;
  while (!rest.empty()) {
    const ssize_t count = ::write(file, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    rest.remove_prefix(static_cast<size_t>(count));
  }
  if (rest.empty()) return is_whole = true;
  if (rest.size() < whole.size()) is_whole = false;
  return false;
}

}  // namespace strata::server
