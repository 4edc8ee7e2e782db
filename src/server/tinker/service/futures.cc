// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/service/futures.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/crypto.h"
#include "server/http/message.h"
#include "server/tinker/refusals.h"
#include "server/tinker/service/result_size.h"

namespace strata::server {
namespace {

constexpr size_t kMostOfOne =
    8192;  // answered numbers of a thing: far more than retries reach back
constexpr int64_t kNumberBytes = 256;  // with what maps and the heap add
constexpr int64_t kThingBytes = 768;

constexpr size_t kMaxPolls = 4;          // of one future, where there is no space for more
constexpr double kLeastHold = 1.0;       // s; a poll that was ended sooner would only come again
constexpr size_t kMostDelivered = 8192;  // results of a tenant that are kept after their delivery

constexpr size_t kMacBytes = 15;  // 120 bits, 20 characters without padding
constexpr size_t kMacLength = 20;
constexpr size_t kMaxId = 80;  // characters

Response not_found(std::string_view id) {
  return error_response(
      404, fmt::format("no such request: {}{}", id.substr(0, 100), id.size() > 100 ? "..." : ""));
}

}  // namespace

const KnownRequest* IdempotencyTable::find(const RequestNumber& number) const {
  const auto thing = things_.find(number.of);
  if (thing == things_.end()) return nullptr;
  for (const auto* entries : {&thing->second.waiting, &thing->second.answered}) {
    const auto found = entries->find(number.number);
    if (found != entries->end()) return &found->second.known;
  }
  return nullptr;
}

void IdempotencyTable::add(const RequestNumber& number, KnownRequest known) {
  things_[number.of].waiting[number.number] = {std::move(known), {}};
}

void IdempotencyTable::mark_answered(const std::string& tenant, const RequestNumber& number,
                                     const std::string& request) {
  const auto thing = things_.find(number.of);
  if (thing == things_.end()) return;
  Numbers& numbers = thing->second;
  const auto found = numbers.waiting.find(number.number);
  if (found == numbers.waiting.end() || found->second.known.request != request) return;
  auto entry = numbers.waiting.extract(found);
  if (number.number == kMaking ||
      take_space_forgetting_oldest(tenant, numbers, entry.mapped().bytes))
    numbers.answered.insert(std::move(entry));
  if (numbers.waiting.empty() && numbers.answered.empty()) things_.erase(thing);
}

bool IdempotencyTable::forget_oldest(Numbers& numbers) {
  const auto oldest = numbers.answered.upper_bound(kMaking);
  if (oldest == numbers.answered.end()) return false;
  numbers.answered.erase(oldest);
  return true;
}

bool IdempotencyTable::take_space_forgetting_oldest(const std::string& tenant, Numbers& numbers,
                                                    SharedLimit::Share& bytes) {
  if (numbers.answered.size() >= kMostOfOne) forget_oldest(numbers);
  do {
    if (!numbers.bytes) numbers.bytes = bytes_.take(tenant, kThingBytes);
    if (numbers.bytes) bytes = bytes_.take(tenant, kNumberBytes);
  } while (!bytes && forget_oldest(numbers));
  if (!bytes) numbers.bytes = {};  // none of the answered takes any
  return static_cast<bool>(bytes);
}

int64_t IdempotencyTable::forget(const std::string& of) {
  const auto found = things_.find(of);
  if (found == things_.end()) return 0;
  const int64_t count = std::ssize(found->second.waiting) + std::ssize(found->second.answered);
  things_.erase(found);
  return count;
}

int64_t IdempotencyTable::forget_first_below(const std::string& prefix) {
  const auto found = things_.lower_bound(prefix);
  return found != things_.end() && found->first.starts_with(prefix) ? forget(found->first) : 0;
}

std::string RequestIds::mac(std::string_view tenant, std::string_view body) const {
  return base64url(
      hmac_sha256(secret_, fmt::format("request\n{}\n{}", tenant, body)).substr(0, kMacBytes));
}

std::string RequestIds::make(std::string_view tenant, bool is_sample) {
  auto next = next_.find(tenant);
  if (next == next_.end()) next = next_.emplace(tenant, 0).first;
  const std::string body = fmt::format("{}{}-{}", is_sample ? 's' : 'r', boot_, next->second++);
  return body + "-" + mac(tenant, body);
}

RequestIds::Origin RequestIds::verify_origin(std::string_view tenant, std::string_view id) const {
  if (id.size() < kMacLength + 2 || id.size() > kMaxId) return Origin::kForeign;
  const std::string_view body = id.substr(0, id.size() - kMacLength - 1);
  const std::string wanted = mac(tenant, body);
  if (id[body.size()] != '-' || !equal_constant_time(wanted, id.substr(body.size() + 1))) {
    return Origin::kForeign;
  }
  const bool is_sample = body.front() == 's';
  if (body.substr(1, body.find('-') - 1) == std::to_string(boot_)) return Origin::kThisBoot;
  return is_sample ? Origin::kLostSample : Origin::kLostOther;
}

Response failure_response(api::FaultCategory category, std::string_view message) {
  const char* whose = category == api::FaultCategory::kUser ? "user" : "server";
  return json_response(200, JsonObject{{"error", message}, {"category", whose}}.text());
}

api::RequestId Futures::new_id(const std::string& tenant, FutureKind kind) {
  return {ids_.make(tenant, kind == FutureKind::kSample)};
}

void Futures::add(const api::RequestId& id, Charge charge,
                  std::shared_ptr<PendingCommand> pending) {
  Entry& entry = entries_[id.text];
  entry.tenant = charge.tenant();
  entry.charge = std::move(charge);
  entry.pending = std::move(pending);
  ++num_pending_;
}

std::shared_ptr<PendingCommand> Futures::take_pending(const api::RequestId& id) {
  const auto found = entries_.find(id.text);
  return found == entries_.end() ? nullptr : std::exchange(found->second.pending, nullptr);
}

std::shared_ptr<PendingCommand> Futures::find_pending(const api::RequestId& id) const {
  const auto found = entries_.find(id.text);
  return found == entries_.end() ? nullptr : found->second.pending;
}

void Futures::discard_future(const api::RequestId& id) {
  const auto found = entries_.find(id.text);
  if (found == entries_.end() || found->second.done) return;
  const std::vector<Poll> polls = take_polls(found->second);
  entries_.erase(found);
  --num_pending_;
  for (const Poll& poll : polls) poll.respond(not_found(id.text));
}

// Moves what the response holds to where polls share it.
void Futures::move_to_shared(Entry& entry, Response& response) {
  struct Held {
    std::string bytes;
    Encoding encoding;
    Charge charge;
  };
  const auto size = static_cast<int64_t>(response.num_bytes()) + kFutureBytes;
  if (!hold_dropping_delivered(entry.charge, size)) entry.charge.hold_anyway(Use::kResult, size);
  // What may lack memory comes first: then this is done again, of a fault.
  const auto held = std::make_shared<Held>();
  if (response.encoding) held->encoding = *response.encoding;
  held->charge = std::exchange(entry.charge, entry.charge.another());
  held->bytes = std::exchange(response.body, {});
  if (response.encoding) {
    response.encoding = std::shared_ptr<const Encoding>(held, &held->encoding);
  } else {
    response.shared_body = std::shared_ptr<const std::string>(held, &held->bytes);
  }
}

bool Futures::hold_dropping_delivered(Charge& charge, int64_t size) {
  while (!charge.hold(Use::kResult, size)) {
    if (!drop_oldest_delivered(charge.tenant())) return false;
  }
  return true;
}

void Futures::erase(const std::string& id) {
  const auto found = entries_.find(id);
  const auto of_tenant = delivered_.find(found->second.tenant);
  const std::pair<double, std::string> key = {found->second.completed, id};
  if (of_tenant != delivered_.end()) {
    of_tenant->second.erase(key);
    if (of_tenant->second.empty()) delivered_.erase(of_tenant);
  }
  completed_.erase(key);
  entries_.erase(found);
}

// Drops this tenant's oldest delivered result; false when there is none.
bool Futures::drop_oldest_delivered(const std::string& tenant) {
  const auto found = delivered_.find(tenant);
  if (found == delivered_.end()) return false;
  const std::string id = found->second.begin()->second;
  erase(id);
  return true;
}

// For one more that was delivered the oldest goes, so that whoever needs space drops few at once.
void Futures::limit_delivered(const std::string& tenant) {
  const auto found = delivered_.find(tenant);
  if (found != delivered_.end() && found->second.size() > kMostDelivered)
    drop_oldest_delivered(tenant);
}

void Futures::deliver(const std::string& id, Entry& entry, const Respond& respond) {
  if (!std::exchange(entry.delivered, true)) {
    delivered_[entry.tenant].emplace(entry.completed, id);
  }
  respond(entry.response);
}

std::string progress_text(const api::Progress& progress) {
  const auto whole = static_cast<int64_t>(progress.done);
  if (progress.done == static_cast<double>(whole))
    return fmt::format("{} of {} data are done", whole, progress.total);
  return fmt::format("{:.0f} % of its data are done",
                     100.0 * progress.done / static_cast<double>(progress.total));
}

void Futures::note_progress(const api::RequestId& id, const std::string& how_far) {
  const auto found = entries_.find(id.text);
  if (found != entries_.end()) found->second.how_far = how_far;
}

void Futures::complete(const api::RequestId& id, Response response, double now) {
  const auto found = entries_.find(id.text);
  if (found == entries_.end() || found->second.done) return;
  Entry& entry = found->second;
  move_to_shared(entry, response);
  completed_.emplace(now, id.text);
  // Where memory lacked for what is above it is pending still, and may fail.
  entry.done = true;
  entry.completed = now;
  entry.response = std::move(response);
  --num_pending_;
  for (const Poll& poll : take_polls(entry)) deliver(id.text, entry, poll.respond);
  limit_delivered(std::string(entry.tenant));  // a copy: the entry may be the one that goes
}

void Futures::fail(const api::RequestId& id, api::FaultCategory category, std::string_view message,
                   double now) {
  complete(id, failure_response(category, message), now);
}

// Where there is nothing of this id.
Response Futures::gone_response(const std::string& tenant, const std::string& id) const {
  switch (ids_.verify_origin(tenant, id)) {
    case RequestIds::Origin::kForeign:
      break;
    case RequestIds::Origin::kThisBoot:
      return error_response(
          410, fmt::format("the result of request {} has expired (--result-ttl {:g} s), or made "
                           "space for others after its delivery (--max-result-bytes {}, and {} "
                           "results)",
                           id, options_.result_ttl, results().limit(), kMostDelivered));
    case RequestIds::Origin::kLostSample:
      return error_response(410, fmt::format("request {} was lost when the server restarted", id));
    case RequestIds::Origin::kLostOther:
      return failure_response(api::FaultCategory::kServer,
                              fmt::format("request {} was lost when the server restarted", id));
  }
  return not_found(id);
}

uint64_t Futures::poll(const std::string& tenant, const std::string& id, const Respond& respond,
                       double now) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    respond(gone_response(tenant, id));
    return 0;
  }
  Entry& entry = found->second;
  if (entry.tenant != tenant) {
    respond(not_found(id));
    return 0;
  }
  if (entry.done) {
    deliver(id, entry, respond);
    limit_delivered(tenant);
    return 0;
  }
  Charge place = open(tenant);
  std::optional<Response> refused = admit(place, Use::kPoll, 1, kTooManyPolls);
  if (refused && end_oldest_poll(id, entry, now))
    refused = admit(place, Use::kPoll, 1, kTooManyPolls);
  if (refused) {
    respond(std::move(*refused));
    return 0;
  }
  entry.polls.push_back({++last_poll_, respond});
  parked_.emplace(last_poll_, Parked{now + options_.poll_hold, id, std::move(place)});
  return last_poll_;
}

// Many may wait for one result; who comes again and again for it takes its own place.
bool Futures::end_oldest_poll(const std::string& id, Entry& entry, double now) {
  const auto is_old = [&](const Poll& poll) {
    const double since = parked_.at(poll.number).deadline - options_.poll_hold;
    return now - since >= std::min(kLeastHold, options_.poll_hold / 2);
  };
  if (entry.polls.size() < kMaxPolls || !is_old(entry.polls.front())) return false;
  end_poll_with_try_again(id, entry, 0);
  return true;
}

void Futures::cancel_poll(const std::string& id, uint64_t poll) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  const std::vector<Poll>& polls = found->second.polls;
  const auto is_it = [poll](const Poll& one) { return one.number == poll; };
  const auto at = std::ranges::find_if(polls, is_it);
  if (at != polls.end())
    end_poll_with_try_again(id, found->second, static_cast<size_t>(at - polls.begin()));
}

// They wait no longer, and are not answered yet.
std::vector<Futures::Poll> Futures::take_polls(Entry& entry) {
  std::vector<Poll> polls = std::exchange(entry.polls, {});
  for (const Poll& poll : polls) parked_.erase(poll.number);
  return polls;
}

void Futures::end_poll_with_try_again(const std::string& id, Entry& entry, size_t index) {
  const auto at = entry.polls.begin() + static_cast<std::ptrdiff_t>(index);
  const Poll poll = std::move(*at);
  entry.polls.erase(at);
  parked_.erase(poll.number);
  JsonObject reply = {{"type", "try_again"}, {"request_id", id}, {"queue_state", "active"}};
  if (!entry.how_far.empty()) reply.add("queue_state_reason", entry.how_far);
  poll.respond(json_response(408, reply.text()));
}

void Futures::put_off_expiry(double seconds) {
  const auto put_off = [seconds](ByTime& times) {
    ByTime later;
    for (const auto& [when, id] : times) later.emplace_hint(later.end(), when + seconds, id);
    times.swap(later);
  };
  for (const auto& [when, id] : completed_) entries_.at(id).completed += seconds;
  put_off(completed_);
  for (auto& [tenant, times] : delivered_) put_off(times);
}

void Futures::expire_polls_and_results(double now) {
  while (!parked_.empty() && parked_.begin()->second.deadline <= now) {
    const std::string id = parked_.begin()->second.id;
    end_poll_with_try_again(id, entries_.at(id), 0);  // its polls have rising numbers
  }
  while (!completed_.empty() && completed_.begin()->first + options_.result_ttl <= now) {
    const std::string id = completed_.begin()->second;
    erase(id);
  }
}

std::vector<std::shared_ptr<PendingCommand>> Futures::fail_all_pending(std::string_view message,
                                                                       double now) {
  std::vector<api::RequestId> failed;
  std::vector<std::shared_ptr<PendingCommand>> pending;
  for (auto& [id, entry] : entries_) {
    if (entry.done) continue;
    failed.push_back({id});
    if (entry.pending != nullptr) pending.push_back(std::exchange(entry.pending, nullptr));
  }
  for (const api::RequestId& id : failed) fail(id, api::FaultCategory::kServer, message, now);
  return pending;
}

}  // namespace strata::server
