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

// Who may be closed for a newcomer: strangers, whose present request has no key, whatever they do,
// and of tenants what waits for its next request, until its header is whole. The stranger goes that
// has been one for longest: a host has as many addresses of IPv6 as it likes. Without strangers the
// tenant that has most gives up its oldest, so that a few that hold all cannot keep others out;
// where each has one, the oldest goes.
template <typename Connection>
class IdleConnections {
 public:
  // It waits for a request: nobody's yet.
  void opened(Connection& one) { begin(one); }
  void closed(Connection& one) {
    strangers_.erase(one.idle_order);
    known_.erase(one.idle_order);
    const auto found = of_tenant_.find(one.tenant);
    if (found == of_tenant_.end() || !found->second.contains(one.idle_order)) return;
    by_count_.erase({found->second.size(), one.tenant});
    found->second.erase(one.idle_order);
    if (found->second.empty()) {
      of_tenant_.erase(found);
    } else {
      by_count_.insert({found->second.size(), one.tenant});
    }
  }

  // From when one waits for its next request until something has arrived.
  void begin(Connection& one) {
    closed(one);
    one.idle_order = ++last_;
    if (one.tenant.empty()) {
      strangers_.emplace(one.idle_order, &one);
      return;
    }
    known_.emplace(one.idle_order, &one);
    Oldest& idle = of_tenant_[one.tenant];
    by_count_.erase({idle.size(), one.tenant});
    idle.emplace(one.idle_order, &one);
    by_count_.insert({idle.size(), one.tenant});
  }
  void end(Connection& one) {
    if (!one.tenant.empty()) closed(one);
  }
  // Whose key its request has; empty: it has none.
  void asks(Connection& one, const std::string& tenant) {
    closed(one);
    one.tenant = tenant;
    if (tenant.empty()) begin(one);
  }

  // Which to close for one more; null: none that may be.
  [[nodiscard]] Connection* victim() const {
    if (!strangers_.empty()) return strangers_.begin()->second;
    if (known_.empty()) return nullptr;
    const auto& [most, tenant] = *by_count_.rbegin();
    return most > 1 ? of_tenant_.at(tenant).begin()->second : known_.begin()->second;
  }

 private:
  using Oldest = std::map<uint64_t, Connection*>;
  uint64_t last_ = 0;
  Oldest strangers_, known_;
  std::map<std::string, Oldest> of_tenant_;  // that have any
  std::set<std::pair<size_t, std::string>> by_count_;
};

// A Connection has a stream, a buffer, `counted` (its address here), `held` (its bytes here),
// `tenant` and `idle_order` for IdleConnections, and `is_evicted`: it counts no longer, and is
// about to end.
template <typename Connection>
class Places {
 public:
  explicit Places(ConnectionLimit limit) : limit_(std::move(limit)) {}

  // For a connection that was accepted; or the option that forbids it.
  std::string_view take(Connection& one) {
    std::string_view option = try_take(one);
    if (option.empty() || !limit_.may_have(one.counted, connection_bytes(one.stream.is_secured())))
      return option;
    return make_place() ? try_take(one) : option;
  }
  void leave(Connection& one) {
    limit_.resize(one.counted, one.held, 0);
    if (one.is_evicted) return;
    idles_.closed(one);
    limit_.close(one.counted);
  }

  // What it takes now: itself, and its header twice, as it came and in the request that is
  // answered. False, and nothing changes, when there is no space for that.
  bool hold(Connection& one) {
    if (one.is_evicted) return false;
    const size_t grown = std::max(one.buffer.capacity(), kFirstRead) - kFirstRead;
    const int64_t bytes =
        connection_bytes(one.stream.is_secured()) + 2 * static_cast<int64_t>(grown);
    return limit_.resize(one.counted, one.held, bytes);
  }

  // It waits for a request, until end_idle().
  void begin_idle(Connection& one) {
    if (!one.is_evicted) idles_.begin(one);
  }
  // It was refused, and only listens whether its peer has read that: anybody may have its place.
  void begin_linger(Connection& one) { asks(one, ""); }
  void end_idle(Connection& one) {
    if (!one.is_evicted) idles_.end(one);
  }
  // It is answered: a request with a key, or a signed URL, of this tenant; or one with none.
  void asks(Connection& one, const std::string& tenant) {
    if (!one.is_evicted) idles_.asks(one, tenant);
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
    idles_.opened(one);
    return {};
  }
  bool make_place() {
    Connection* idle = idles_.victim();
    if (idle == nullptr) return false;
    leave(*idle);
    idle->is_evicted = true;
    idle->stream.close();
    return true;
  }

  ConnectionLimit limit_;
  IdleConnections<Connection> idles_;
};

}  // namespace strata::server
