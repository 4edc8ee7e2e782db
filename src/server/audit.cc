#include "server/audit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"
#include "checkpoint/json.h"
#include "server/state/store.h"

namespace strata::server {
namespace {

constexpr size_t kMaxQueued = 4 << 20;  // bytes of lines that wait for the disk
constexpr size_t kMaxObject = 512;      // bytes

int open_log(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

// Names from requests may hold any bytes.
std::string quoted(std::string_view text) {
  text = text.substr(0, kMaxObject);
  if (valid_utf8(text)) return json_quote(text);
  std::string plain(text);
  for (char& c : plain) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return json_quote(plain);
}

std::string text_of(const AuditLine& line) {
  return fmt::format(
      "{{\"time\":\"{}\",\"tenant\":{},\"key\":{},\"address\":{},\"action\":{},\"object\":{},"
      "\"status\":{}}}\n",
      rfc3339(line.time), quoted(line.tenant), quoted(line.key_id), quoted(line.address),
      quoted(line.action), quoted(line.object), line.status);
}

}  // namespace

struct AuditLog::Writer {
  explicit Writer(std::string name) : path(std::move(name)), file(open_log(path)) {
    if (file >= 0) return;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--audit {}: {}", path, std::strerror(errno)));
  }
  ~Writer() { ::close(file); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  struct Job {
    std::string text;  // empty: reopen
  };
  void add(Job job);
  void loop();
  void run(const Job& job);
  [[nodiscard]] bool append(const std::string& text);

  const std::string path;
  Mutex mutex;
  CondVar wake;
  std::deque<Job> jobs GUARDED_BY(mutex);
  size_t queued_bytes GUARDED_BY(mutex) = 0;
  Counts counts GUARDED_BY(mutex);
  bool is_stopping GUARDED_BY(mutex) = false;
  bool is_done GUARDED_BY(mutex) = false;  // the thread
  // Of the thread.
  int file;
  bool is_whole = true;  // the last line has its end
  bool is_failing = false;
};

AuditLog::AuditLog(std::string path) : writer_(std::make_shared<Writer>(std::move(path))) {
  std::thread([writer = writer_] { writer->loop(); }).detach();
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

void AuditLog::add(AuditLine line) { writer_->add({text_of(line)}); }

void AuditLog::reopen() { writer_->add({}); }

void AuditLog::Writer::add(Job job) {
  const MutexLock lock(mutex);
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

void AuditLog::Writer::loop() {
  mutex.lock();
  for (;;) {
    while (!is_stopping && jobs.empty()) wake.wait(mutex);
    if (jobs.empty()) break;
    const Job job = std::move(jobs.front());
    jobs.pop_front();
    queued_bytes -= job.text.size();
    mutex.unlock();
    run(job);
    mutex.lock();
  }
  is_done = true;
  wake.notify_all();
  mutex.unlock();
}

void AuditLog::Writer::run(const Job& job) {
  if (job.text.empty()) {
    const int next = open_log(path);
    if (next < 0) {
      return log(LogLevel::kError, fmt::format("audit: {}: {}; the old file stays in use", path,
                                               std::strerror(errno)));
    }
    ::close(file);
    file = next;
    is_whole = true;
    return;
  }
  const bool is_written = append(job.text);
  const int fault = errno;
  // Once for each time of trouble, not for each line.
  if (!is_written && !is_failing)
    log(LogLevel::kError,
        fmt::format("audit: {}: {}; lines are dropped and counted (strata_audit_lines_total)", path,
                    std::strerror(fault)));
  if (is_written && is_failing) log(LogLevel::kWarning, "audit: lines are written again");
  is_failing = !is_written;
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
