#include "server/service/futures.h"

#include <fmt/format.h>

#include <utility>

#include "server/protocol/json_body.h"

namespace strata::server {
namespace {

Response not_found(std::string_view id) {
  return error_response(
      404, fmt::format("no such request: {}{}", id.substr(0, 100), id.size() > 100 ? "..." : ""));
}

}  // namespace

Response failure_response(api::FaultCategory category, std::string_view message) {
  return json_response(200,
                       fmt::format("{{\"error\":{},\"category\":\"{}\"}}", json_quoted(message),
                                   category == api::FaultCategory::kUser ? "user" : "server"));
}

api::RequestId Futures::new_id(const std::string& tenant, FutureKind kind) {
  return {ids_.make(tenant, kind == FutureKind::kSample)};
}

void Futures::add(const api::RequestId& id, const std::string& tenant) {
  entries_[id.text].tenant = tenant;
  ++num_pending_;
}

bool Futures::is_pending(const api::RequestId& id) const {
  const auto found = entries_.find(id.text);
  return found != entries_.end() && !found->second.done;
}

void Futures::complete(const api::RequestId& id, Response response, double now) {
  const auto found = entries_.find(id.text);
  if (found == entries_.end() || found->second.done) return;
  Entry& entry = found->second;
  entry.done = true;
  entry.response = std::move(response);
  --num_pending_;
  completed_.emplace_back(now, id.text);
  num_parked_ -= static_cast<int64_t>(entry.polls.size());
  for (const auto& [deadline, respond] : std::exchange(entry.polls, {})) respond(entry.response);
}

void Futures::fail(const api::RequestId& id, api::FaultCategory category, std::string_view message,
                   double now) {
  complete(id, failure_response(category, message), now);
}

void Futures::poll(const std::string& tenant, const std::string& id, const Respond& respond,
                   double now) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    switch (ids_.origin(tenant, id)) {
      case RequestIds::Origin::kForeign:
        return respond(not_found(id));
      case RequestIds::Origin::kThisBoot:
        return respond(error_response(
            410, fmt::format("the result of request {} has expired (--result-ttl {:g} s)", id,
                             options_.result_ttl)));
      case RequestIds::Origin::kLostSample:
        return respond(
            error_response(410, fmt::format("request {} was lost when the server restarted", id)));
      case RequestIds::Origin::kLostOther:
        return respond(
            failure_response(api::FaultCategory::kServer,
                             fmt::format("request {} was lost when the server restarted", id)));
    }
  }
  Entry& entry = found->second;
  if (entry.tenant != tenant) return respond(not_found(id));
  if (entry.done) return respond(entry.response);
  if (num_parked_ >= options_.max_parked) {
    Response full = error_response(
        429, fmt::format("{} polls are waiting already (--max-parked)", num_parked_));
    full.headers.push_back({"retry-after", "1"});
    return respond(std::move(full));
  }
  entry.polls.emplace_back(now + options_.poll_hold, respond);
  parked_.emplace_back(now + options_.poll_hold, id);
  ++num_parked_;
}

void Futures::excuse(double seconds) {
  for (auto& [when, id] : completed_) when += seconds;
}

void Futures::sweep(double now) {
  for (; !parked_.empty() && parked_.front().first <= now; parked_.pop_front()) {
    const auto found = entries_.find(parked_.front().second);
    if (found == entries_.end()) continue;
    auto& polls = found->second.polls;
    while (!polls.empty() && polls.front().first <= now) {
      const Respond respond = std::move(polls.front().second);
      polls.erase(polls.begin());
      --num_parked_;
      respond(json_response(
          408,
          fmt::format("{{\"type\":\"try_again\",\"request_id\":{},\"queue_state\":\"active\"}}",
                      json_quoted(found->first))));
    }
  }
  while (!completed_.empty() && completed_.front().first + options_.result_ttl <= now) {
    entries_.erase(completed_.front().second);
    completed_.pop_front();
  }
}

void Futures::fail_all(std::string_view message, double now) {
  std::vector<api::RequestId> pending;
  for (const auto& [id, entry] : entries_) {
    if (!entry.done) pending.push_back({id});
  }
  for (const api::RequestId& id : pending) fail(id, api::FaultCategory::kServer, message, now);
}

}  // namespace strata::server
