// AuditLog: who changed what: one JSON line for each request that changes state, appended to a file
// by a thread of its own. A line has the time, the tenant, the key's id, the request, what it was
// about, and the answer's status; never a body, a key or a query. What cannot be written, since the
// disk is full or too slow, is dropped and counted; nobody waits for it.
//   AuditLog audit("audit.jsonl");  audit.add({...});  audit.reopen();  // after a rotation
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace strata::server {

struct AuditLine {
  double time = 0;  // seconds since 1970, UTC
  std::string tenant;
  std::string key_id;
  std::string address;  // of the peer; "": this machine's own
  std::string action;   // "POST /api/v1/save_weights"
  std::string object;   // "s:train:0", "tinker://..."; what could not be told is ""
  int status = 0;
};

class AuditLog {
 public:
  // Opens the file for appending, mode 0600 when it is new. Throws Error that names --audit.
  explicit AuditLog(std::string path);
  ~AuditLog();  // writes what is queued
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  // Any thread.
  void add(AuditLine line);
  // Any thread: opens the path again, after what was added before; the old file stays in use when
  // that fails.
  void reopen();
  struct Counts {
    int64_t written = 0, dropped = 0;  // lines
  };
  [[nodiscard]] Counts counts() const;

 private:
  struct Job {
    std::string text;  // empty: reopen
  };

  void loop();
  void run(const Job& job);
  [[nodiscard]] bool append(const std::string& text);

  const std::string path_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Of all threads, under the mutex.
  std::deque<Job> jobs_;
  size_t queued_bytes_ = 0;
  Counts counts_;
  bool stopping_ = false;
  // Of the thread.
  int file_;
  bool is_whole_ = true;  // the last line has its end
  bool is_failing_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace strata::server
