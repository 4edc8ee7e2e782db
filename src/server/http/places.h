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

#include "base/shared_limit.h"
#include "server/http/read_request.h"

namespace strata::server {

// How many connections are open, in all and from each address, and the memory that they take; a
// request that a trusted proxy brings counts as a connection of its client.
class ConnectionLimit {
 public:
  // `bytes` is nobody's share but all connections' together.
  ConnectionLimit(int64_t most, int64_t most_per_address, SharedLimit bytes)
      : most_(most), most_per_address_(most_per_address), bytes_(std::move(bytes)) {}

  // Counts one more from this address ("": loopback, which has no limit of its own); or the option
  // that forbids it, and nothing is counted.
  std::string_view open(const std::string& address) {
    if (all_ >= most_) return "--max-connections";
    const std::string_view option = enter(address);
    if (option.empty()) ++all_;
    return option;
  }
  void close(const std::string& address) {
    --all_;
    leave(address);
  }

  // The same of its address alone, with `bytes` that are counted in all already; or the option that
  // forbids it.
  std::string_view enter(const std::string& address, int64_t bytes = 0) {
    const std::string_view option = refused_by(address, bytes);
    if (!option.empty() || address.empty()) return option;
    Use& use = of_address_[address];
    ++use.count;
    use.bytes += bytes;
    return {};
  }
  void leave(const std::string& address, int64_t bytes = 0) {
    const auto found = of_address_.find(address);
    if (found == of_address_.end()) return;
    found->second.bytes -= bytes;
    if (--found->second.count == 0) of_address_.erase(found);
  }

  // Whether it is not for its own limits that this address has no place for one more.
  [[nodiscard]] bool may_have(const std::string& address, int64_t bytes) const {
    return refused_by(address, bytes).empty();
  }

  // Of a connection that is open: it `held` so many bytes and now takes `bytes`. False, and no
  // change, when there is no space: in all, or in the half that one address may have.
  bool resize(const std::string& address, int64_t& held, int64_t bytes) {
    const int64_t more = bytes - held;
    Use* use = address.empty() ? nullptr : &of_address_[address];
    if (more > 0) {
      if (use != nullptr && use->bytes + more > bytes_.limit() / 2) return false;
      if (!bytes_.take_only("", more)) return false;
    } else {
      bytes_.give("", -more);
    }
    if (use != nullptr) use->bytes += more;
    if (use != nullptr && use->count == 0 && use->bytes == 0) of_address_.erase(address);
    held = bytes;
    return true;
  }
  [[nodiscard]] int64_t num_open() const { return all_; }

 private:
  struct Use {
    int64_t count = 0;
    int64_t bytes = 0;
  };
  // The option that forbids this address one more with so many bytes; "": none.
  [[nodiscard]] std::string_view refused_by(const std::string& address, int64_t bytes) const {
    if (address.empty()) return {};
    const auto found = of_address_.find(address);
    const Use use = found == of_address_.end() ? Use() : found->second;
    if (use.count >= most_per_address_) return "--max-connections-per-address";
    return use.bytes + bytes > bytes_.limit() / 2 ? "--max-connection-bytes" : "";
  }
  int64_t most_, most_per_address_;
  SharedLimit bytes_;
  int64_t all_ = 0;
  std::map<std::string, Use> of_address_;  // with connections or requests
};

// A request that a trusted proxy brought, counted at its client's address as long as it lives, with
// what the proxy's connection takes meanwhile.
class ProxiedRequest {
 public:
  // "": nothing is counted.
  ProxiedRequest(ConnectionLimit& limit, std::string address, int64_t bytes)
      : limit_(limit),
        address_(std::move(address)),
        bytes_(bytes),
        refused_by_(limit.enter(address_, bytes)) {}
  ~ProxiedRequest() {
    if (refused_by_.empty()) limit_.leave(address_, bytes_);
  }
  ProxiedRequest(const ProxiedRequest&) = delete;
  ProxiedRequest& operator=(const ProxiedRequest&) = delete;
  // The option that forbids it; empty: it is within them.
  [[nodiscard]] std::string_view refused_by() const { return refused_by_; }

 private:
  ConnectionLimit& limit_;
  std::string address_;
  int64_t bytes_;
  std::string_view refused_by_;
};

// Who may be closed for a newcomer: strangers, whose present request has no key, whatever they do,
// and of tenants what waits for its next request, until its header is whole. The stranger goes that
// has been one for longest: a host has as many addresses of IPv6 as it likes. Without strangers the
// tenant that has most gives up its oldest, so that a few that hold all cannot keep others out;
// where each has one, the oldest goes.
template <typename Connection>
class IdleConnections {
 public:
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
// `tenant` and `idle_order` for IdleConnections, `has_place`, and `is_evicted`: it counts no
// longer, and is about to end.
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
  // Of one that has none, nothing.
  void leave(Connection& one) {
    if (!std::exchange(one.has_place, false)) return;
    limit_.resize(one.counted, one.held, 0);
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
    one.has_place = true;  // leave() is right from here on, whatever throws
    if (!hold(one)) {
      leave(one);
      return "--max-connection-bytes";
    }
    idles_.begin(one);  // nobody's yet
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
