// Futures: what became of each accepted request, until its result's time is up; and the polls that
// wait for one. Ids carry their own proof (service/request_ids.h), so one whose result is gone is
// told from one that never was, or is another tenant's, without a record. I/O thread only.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/ids.h"
#include "api/result.h"
#include "server/http/message.h"
#include "server/service/request_ids.h"

namespace strata::server {

struct FutureOptions {
  std::string secret;  // of the data directory
  int64_t boot = 1;
  double result_ttl = 1800;  // seconds, from completion
  double poll_hold = 30;
  int64_t max_parked = 10000;
};

enum class FutureKind : uint8_t { kTraining, kSample };

class Futures {
 public:
  explicit Futures(const FutureOptions& options)
      : options_(options), ids_(options.secret, options.boot) {}

  // A fresh id; nothing is kept of it before add().
  api::RequestId new_id(const std::string& tenant, FutureKind kind);
  void add(const api::RequestId& id, const std::string& tenant);
  [[nodiscard]] bool is_pending(const api::RequestId& id) const;

  // The final answer; waiting polls get it now. Later calls for the same id are ignored.
  void complete(const api::RequestId& id, Response response, double now);
  void fail(const api::RequestId& id, api::FaultCategory category, std::string_view message,
            double now);

  // retrieve_future: answers at once, or when the result is there, or 408 after poll_hold.
  void poll(const std::string& tenant, const std::string& id, const Respond& respond, double now);

  // Ends polls that were held long enough and drops old results. Call it several times a second.
  void sweep(double now);
  // These seconds do not count for the life of results.
  void excuse(double seconds);
  // Fails every pending future; nothing is pending afterwards.
  void fail_all(std::string_view message, double now);

  [[nodiscard]] int64_t num_parked() const { return num_parked_; }
  [[nodiscard]] size_t num_pending() const { return num_pending_; }

 private:
  struct Entry {
    std::string tenant;
    bool done = false;
    Response response;
    std::vector<std::pair<double, Respond>> polls;  // each with its deadline
  };
  FutureOptions options_;
  RequestIds ids_;
  std::unordered_map<std::string, Entry> entries_;
  std::deque<std::pair<double, std::string>> completed_;  // by time
  std::deque<std::pair<double, std::string>> parked_;     // deadlines, ascending
  int64_t num_parked_ = 0;
  size_t num_pending_ = 0;
};

// {"error": message, "category": "user"}: how a failed operation looks to a poll.
Response failure_response(api::FaultCategory category, std::string_view message);

}  // namespace strata::server
