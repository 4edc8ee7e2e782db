// SPDX-License-Identifier: Apache-2.0
// AuditLog: who changed what: one JSON line for each request that changes state or hands out
// weights, appended to a file by a thread of its own. A line has the time, the tenant, the key's
// id, the request, what it was about, and the answer's status; never a body, a key or a query. What
// cannot be written, since the disk is full or too slow, is dropped and counted; nobody waits for
// it. Lines are numbered ("seq"; what was dropped has a number too), over rotations and restarts;
// an empty file begins anew.
//   AuditLog audit("audit.jsonl");  audit.add({...});  audit.reopen();  // after a rotation
#pragma once
#include <cstdint>
#include <memory>
#include <string>

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
  // Writes what is queued. A disk that hangs is not waited for longer than kPatience: then says in
  // the log how many lines are lost.
  ~AuditLog();
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

  static constexpr double kPatience = 3.0;  // seconds

 private:
  struct Writer;
  // Its thread's too, which may outlive this in a write that hangs.
  std::shared_ptr<Writer> writer_;
};

}  // namespace strata::server
