#include "server/audit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
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

AuditLog::AuditLog(std::string path) : path_(std::move(path)), file_(open_log(path_)) {
  if (file_ < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--audit {}: {}", path_, std::strerror(errno)));
  }
  thread_ = std::thread([this] { loop(); });
}

AuditLog::~AuditLog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  ::close(file_);
}

void AuditLog::add(AuditLine line) {
  std::string text = text_of(line);
  const std::lock_guard lock(mutex_);
  if (queued_bytes_ + text.size() > kMaxQueued) {
    ++counts_.dropped;
    return;
  }
  queued_bytes_ += text.size();
  jobs_.push_back({std::move(text)});
  wake_.notify_one();
}

void AuditLog::reopen() {
  const std::lock_guard lock(mutex_);
  jobs_.push_back({});
  wake_.notify_one();
}

AuditLog::Counts AuditLog::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void AuditLog::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    queued_bytes_ -= job.text.size();
    lock.unlock();
    run(job);
    lock.lock();
  }
}

void AuditLog::run(const Job& job) {
  if (job.text.empty()) {
    const int file = open_log(path_);
    if (file < 0) {
      return log(LogLevel::kError, fmt::format("audit: {}: {}; the old file stays in use", path_,
                                               std::strerror(errno)));
    }
    ::close(file_);
    file_ = file;
    is_whole_ = true;
    return;
  }
  const bool is_written = append(job.text);
  const int fault = errno;
  // Once for each time of trouble, not for each line.
  if (!is_written && !is_failing_)
    log(LogLevel::kError,
        fmt::format("audit: {}: {}; lines are dropped and counted (strata_audit_lines_total)",
                    path_, std::strerror(fault)));
  if (is_written && is_failing_) log(LogLevel::kWarning, "audit: lines are written again");
  is_failing_ = !is_written;
  const std::lock_guard lock(mutex_);
  ++(is_written ? counts_.written : counts_.dropped);
}

// A line that a full disk cut is ended before the next one begins.
bool AuditLog::append(const std::string& text) {
  const std::string whole = (is_whole_ ? "" : "\n") + text;
  std::string_view rest = whole;
  while (!rest.empty()) {
    const ssize_t count = ::write(file_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    rest.remove_prefix(static_cast<size_t>(count));
  }
  if (rest.empty()) return is_whole_ = true;
  if (rest.size() < whole.size()) is_whole_ = false;
  return false;
}

}  // namespace strata::server
