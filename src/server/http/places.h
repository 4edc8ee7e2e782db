// SPDX-License-Identifier: Apache-2.0
// Places: what connections count as, from when they are accepted until they end, and who makes way
// where none is left. I/O thread.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/connection_limit.h"
#include "server/http/read_request.h"

namespace strata::server {

// Who of which address waits for a request, until its header is whole, oldest first. Where no
// connection is left, the oldest stranger goes, one that never showed a key: a host has as many
// addresses of IPv6 as it likes. Without strangers the address that holds the most gives up its
// oldest idle one for a newcomer from an address that would still hold fewer, so that a few clients
// that hold all cannot keep others out.
template <typename Connection>
class IdleConnections {
 public:
  void opened(const std::string& address) { count(address, 1); }
  void closed(const std::string& address) { count(address, -1); }

  // From when one waits for its next request until something has arrived.
  void begin(const std::string& address, Connection& one) {
    one.idle_order = ++last_;
    of_address_[address].idle.emplace(one.idle_order, &one);
    if (!one.is_known) strangers_.emplace(one.idle_order, &one);
  }
  void end(const std::string& address, Connection& one) {
    strangers_.erase(one.idle_order);
    const auto found = of_address_.find(address);
    if (found != of_address_.end()) found->second.idle.erase(one.idle_order);
  }

  // Which to close for one more of this address; null: none that may be.
  [[nodiscard]] Connection* victim(const std::string& newcomer) const {
    if (!strangers_.empty()) return strangers_.begin()->second;
    const auto own = of_address_.find(newcomer);
    const int64_t held = own == of_address_.end() ? 0 : own->second.count;
    for (auto at = by_count_.rbegin(); at != by_count_.rend() && at->first > held + 1; ++at) {
      const auto& idle = of_address_.at(at->second).idle;
      if (!idle.empty()) return idle.begin()->second;
    }
    return nullptr;
  }

 private:
  struct Held {
    int64_t count = 0;
    std::map<uint64_t, Connection*> idle;
  };
  void count(const std::string& address, int64_t more) {
    Held& held = of_address_[address];
    by_count_.erase({held.count, address});
    held.count += more;
    if (held.count == 0) {
      of_address_.erase(address);
    } else {
      by_count_.insert({held.count, address});
    }
  }

  uint64_t last_ = 0;
  std::map<uint64_t, Connection*> strangers_;  // of all addresses; they stand in `idle` too
  std::map<std::string, Held> of_address_;     // with connections
  std::set<std::pair<int64_t, std::string>> by_count_;
};

// A Connection has a stream, a buffer, `counted` (its address here), `held` (its bytes here),
// `idle_order`, `is_known` and `is_evicted`: it counts no longer, and is about to end.
template <typename Connection>
class Places {
 public:
  explicit Places(ConnectionLimit limit) : limit_(std::move(limit)) {}

  // For a connection that was accepted; or the option that forbids it.
  std::string_view take(Connection& one) {
    std::string_view option = try_take(one);
    if (option.empty() || option == "--max-connections-per-address") return option;
    return make_place(one.counted) ? try_take(one) : option;
  }
  void leave(Connection& one) {
    limit_.resize(one.counted, one.held, 0);
    if (one.is_evicted) return;
    idles_.end(one.counted, one);
    idles_.closed(one.counted);
    limit_.close(one.counted);
  }

  // What it takes now: itself, and its header twice, as it came and in the request that is
  // answered. False, and nothing changes, when there is no space for that.
  bool hold(Connection& one) {
    const size_t grown = std::max(one.buffer.capacity(), kFirstRead) - kFirstRead;
    const int64_t bytes =
        connection_bytes(one.stream.is_secured()) + 2 * static_cast<int64_t>(grown);
    return limit_.resize(one.counted, one.held, bytes);
  }

  // It waits for a request, until end_idle().
  void begin_idle(Connection& one) { idles_.begin(one.counted, one); }
  // It was refused, and only listens whether its peer has read that: anybody may have its place.
  void begin_linger(Connection& one) {
    if (one.is_evicted) return;
    one.is_known = false;
    idles_.begin(one.counted, one);
  }
  void end_idle(Connection& one) {
    if (!one.is_evicted) idles_.end(one.counted, one);
  }

  [[nodiscard]] ConnectionLimit& limit() { return limit_; }

 private:
  std::string_view try_take(Connection& one) {
    const std::string_view option = limit_.open(one.counted);
    if (!option.empty()) return option;
    if (!hold(one)) {
      limit_.close(one.counted);
      return "--max-connection-bytes";
    }
    idles_.opened(one.counted);
    return {};
  }
  bool make_place(const std::string& newcomer) {
    Connection* idle = idles_.victim(newcomer);
    if (idle == nullptr) return false;
    leave(*idle);
    idle->is_evicted = true;
    idle->stream.cancel();
    return true;
  }

  ConnectionLimit limit_;
  IdleConnections<Connection> idles_;
};

}  // namespace strata::server
