// SPDX-License-Identifier: Apache-2.0
// Futures: what became of each accepted request, until its result's time is up; and the polls that
// wait for one. Ids carry their own proof, so one whose result is gone is told from one that never
// was, or is another tenant's, without a record. A result is held once, however many polls get it.
// Results and waiting polls are limited by tenant and in all; for space the oldest results that
// were delivered go first. I/O thread only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/event.h"
#include "api/ids.h"
#include "api/result.h"
#include "base/shared_limit.h"
#include "server/http/message.h"
#include "server/tinker/view/watch.h"

namespace strata::server {

// The number of a request among those of one model or sampling session.
struct RequestNumber {
  std::string of = {};  // empty: a request has none
  int64_t number = 0;
};

struct KnownRequest {
  uint64_t fingerprint = 0;
  std::string request;
  int64_t num_samples = 0;
};

// IdempotencyTable: (model or session, seq_id) -> the request that used it first, so that a retry
// gets the same future. An entry lives with its future, whose command holds its space. Answered
// ones count against the tenant: for a new one the oldest of the same thing are evicted, and where
// that is not enough it is evicted itself. I/O thread only.
class IdempotencyTable {
 public:
  // A model's making, which is known as long as the model: there are no more of these than models.
  static constexpr int64_t kMaking = -1;

  explicit IdempotencyTable(const SharedLimit& bytes) : bytes_(bytes) {}

  // Null when it did not come, or was forgotten.
  [[nodiscard]] const KnownRequest* find(const RequestNumber& number) const;
  // A request that waits, and that it waits no longer.
  void add(const RequestNumber& number, KnownRequest known);
  void mark_answered(const std::string& tenant, const RequestNumber& number,
                     const std::string& request);
  // All numbers of a thing; how many there were.
  int64_t forget(const std::string& of);
  // Those of the first thing whose name begins with this; how many. 0: there are no more.
  int64_t forget_first_below(const std::string& prefix);

 private:
  struct Entry {
    KnownRequest known;
    SharedLimit::Share bytes;  // of one that was answered
  };
  struct Numbers {  // of a thing, one at least
    std::map<int64_t, Entry> waiting, answered;
    SharedLimit::Share bytes;  // its own, where any of the answered takes some
  };
  [[nodiscard]] bool take_space_forgetting_oldest(const std::string& tenant, Numbers& numbers,
                                                  SharedLimit::Share& bytes);
  static bool forget_oldest(Numbers& numbers);

  SharedLimit bytes_;
  std::map<std::string, Numbers> things_;
};

// Listener: hears what happens to one request, in order: Accepted first, before the submission
// returns, and an Outcome last. I/O thread only. It must not throw. What it keeps of events until
// somebody has read it is its own to bound (http/body_stream.h does, by tenant).
using Listener = std::function<void(const api::Event&)>;

struct FutureOptions {
  std::string secret;  // of the data directory
  int64_t boot = 1;
  double result_ttl = 1800;  // seconds, from completion
  double poll_hold = 30;
  Accounts accounts = {};  // of polls, and of results until they are sent for the last time
};

struct PendingCommand;

// Names of futures that carry their own proof. An id holds the boot it was made in, a number, the
// kind and a MAC over these and the tenant, so that after a restart, without a row in the state
// store, a lost one (410 or a failed future) differs from an unknown or foreign one (404). Each
// tenant's numbers are its own: they tell nobody how much others do.
class RequestIds {
 public:
  RequestIds(std::string secret, int64_t boot) : secret_(std::move(secret)), boot_(boot) {}

  // One thread.
  std::string make(std::string_view tenant, bool is_sample);

  enum class Origin {
    kForeign,     // never ours, or another tenant's: 404
    kThisBoot,    // ours; when no future has it any more, its result has expired: 410
    kLostSample,  // of an earlier process: 410
    kLostOther    // of an earlier process: 200 {error, category: server}
  };
  [[nodiscard]] Origin verify_origin(std::string_view tenant, std::string_view id) const;

 private:
  [[nodiscard]] std::string mac(std::string_view tenant, std::string_view body) const;

  std::string secret_;
  int64_t boot_;
  std::map<std::string, uint64_t, std::less<>> next_;  // by tenant: as many as keys name
};

enum class FutureKind : uint8_t { kTraining, kSample };

// "3 of 8 data are done", "44 % of its data are done".
std::string progress_text(const api::Progress& progress);

class Futures {
 public:
  explicit Futures(const FutureOptions& options)
      : options_(options), ids_(options.secret, options.boot) {}

  // A fresh id; nothing is kept of it before add().
  api::RequestId new_id(const std::string& tenant, FutureKind kind);
  // `charge`: the tenant's, which holds what the result may take. `pending`: what its end
  // is waited for with, of a command.
  void add(const api::RequestId& id, Charge charge,
           std::shared_ptr<PendingCommand> pending = nullptr);
  // Null when there is none, or when it was taken.
  std::shared_ptr<PendingCommand> take_pending(const api::RequestId& id);
  // The pending command of that id, which stays; null when there is none.
  [[nodiscard]] std::shared_ptr<PendingCommand> find_pending(const api::RequestId& id) const;
  // Whether this was once the id of a request of the tenant's.
  [[nodiscard]] bool was_made(const std::string& tenant, const std::string& id) const {
    return ids_.verify_origin(tenant, id) != RequestIds::Origin::kForeign;
  }
  // Forgets a future whose end a listener heard; its polls get 404.
  void discard_future(const api::RequestId& id);
  // A charge of the tenant's account, which holds nothing yet.
  [[nodiscard]] Charge open(const std::string& tenant) const {
    return options_.accounts.open(tenant);
  }
  // The charge holds `size` bytes for a result from then on: for space the tenant's oldest results
  // go that were delivered. False, and it is as it was, where that is not enough.
  [[nodiscard]] bool hold_dropping_delivered(Charge& charge, int64_t size);

  // How far its request is, in words: what polls that end without a result say.
  void note_progress(const api::RequestId& id, const std::string& how_far);

  // The final answer; waiting polls get it now. Later calls for the same id are ignored. What of
  // it is more than its charge held is kept and counts all the same; then nothing new is accepted
  // before some was fetched.
  void complete(const api::RequestId& id, Response response, double now);
  void fail(const api::RequestId& id, api::FaultCategory category, std::string_view message,
            double now);

  // retrieve_future: answers at once, or when the result is there, or 408 after poll_hold; where a
  // tenant may hold no more, the oldest of more than four of this future gets its 408 now if it was
  // held for a second, else the newest one 429: nobody spins. What it is held as; 0: it was
  // answered.
  uint64_t poll(const std::string& tenant, const std::string& id, const Respond& respond,
                double now);
  // The client of a poll that is held has gone: it ends.
  void cancel_poll(const std::string& id, uint64_t poll);

  // Ends polls that were held long enough and drops old results. Call it several times a second.
  void expire_polls_and_results(double now);
  // These seconds do not count for the life of results.
  void put_off_expiry(double seconds);
  // Fails every pending future; nothing is pending afterwards. What they were waited for with.
  std::vector<std::shared_ptr<PendingCommand>> fail_all_pending(std::string_view message,
                                                                double now);

  [[nodiscard]] int64_t num_parked() const { return std::ssize(parked_); }
  [[nodiscard]] size_t num_pending() const { return num_pending_; }
  [[nodiscard]] int64_t result_bytes() const { return results().used(); }

 private:
  struct Poll {
    uint64_t number;  // rises
    Respond respond;
  };
  struct Entry {
    std::string tenant;
    Charge charge;
    bool done = false;
    bool delivered = false;
    double completed = 0;
    std::string how_far;
    Response response;
    std::vector<Poll> polls;
    std::shared_ptr<PendingCommand> pending;  // until its command is settled
  };
  using ByTime = std::set<std::pair<double, std::string>>;

  void move_to_shared(Entry& entry, Response& response);
  bool end_oldest_poll(const std::string& id, Entry& entry, double now);
  void deliver(const std::string& id, Entry& entry, const Respond& respond);
  bool drop_oldest_delivered(const std::string& tenant);
  void limit_delivered(const std::string& tenant);
  void erase(const std::string& id);
  [[nodiscard]] Response gone_response(const std::string& tenant, const std::string& id) const;
  [[nodiscard]] const SharedLimit& results() const { return options_.accounts.of(Use::kResult); }
  std::vector<Poll> take_polls(Entry& entry);
  void end_poll_with_try_again(const std::string& id, Entry& entry, size_t index);

  FutureOptions options_;
  RequestIds ids_;
  std::unordered_map<std::string, Entry> entries_;
  ByTime completed_;
  std::map<std::string, ByTime> delivered_;  // of each tenant
  struct Parked {
    double deadline;
    std::string id;
    Charge place;
  };
  std::map<uint64_t, Parked> parked_;  // by their numbers, so with deadlines that ascend
  uint64_t last_poll_ = 0;
  size_t num_pending_ = 0;
};

// {"error": message, "category": "user"}: how a failed operation looks to a poll.
Response failure_response(api::FaultCategory category, std::string_view message);

// What the end of a command is waited for with, as its submission left it, until it is settled: its
// Completion makes the response of a success, or undoes what was prepared. Each kind is a struct of
// its own, in the file of its handler, and names what it works on.
class Completion {
 public:
  Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;
  virtual ~Completion() = default;

  // The answer to a success; throws Error for a fault in what follows it.
  virtual Response finish(const api::Outcome& outcome) = 0;
  // Before the files of a save are written, on the thread that writes them; throws Error.
  virtual void make_folder() {}
  // The command was refused or failed, or make_folder() or finish() threw.
  virtual void undo() {}
  // finish() works on files alone, and runs on another thread, and undo() behind it: when nothing
  // is made yet it is called on the I/O thread, thousands of times in a row.
  [[nodiscard]] virtual bool writes_files() const { return false; }
};

struct PendingCommand {
  std::shared_ptr<Completion> completion = {};  // null: a listener is told, and nobody polls
  Listener listener = {};
  std::string key_id = {};    // whose tokens they are: of data and samples
  RequestNumber number = {};  // of a sample; those of models submit() knows
  int64_t num_samples = 0;    // of one that has a number
  // Set by Service::submit().
  api::RequestId request = {};
  bool is_sample = false;
  WatchedCommand watched = {};
  std::string tenant = {};
  std::shared_ptr<void> tokens = {};  // of the quota, until it is known how many they were
  int64_t num_emitted = 0;            // of a sample: tokens so far
};

}  // namespace strata::server
