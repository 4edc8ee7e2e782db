// SPDX-License-Identifier: Apache-2.0
// What connections count as, from when they are accepted until they end, and who makes way where no
// place is left. I/O thread.
#pragma once
#include <algorithm>
#include <boost/beast/core/flat_buffer.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/shared_limit.h"
#include "server/http/read_request.h"
#include "server/http/server.h"
#include "server/http/stream.h"

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
  std::string_view admit_address(const std::string& address) {
    if (all_ >= most_) return "--max-connections";
    const std::string_view option = charge_address(address);
    if (option.empty()) ++all_;
    return option;
  }
  void release(const std::string& address) {
    --all_;
    release_for_address(address);
  }

  // Counts a request at its client's address alone, with `bytes` that are counted in all already;
  // or the option that forbids it.
  std::string_view charge_address(const std::string& address, int64_t bytes = 0) {
    const std::string_view option = exceeded_limit_option(address, bytes);
    if (!option.empty() || address.empty()) return option;
    Use& use = of_address_[address];
    ++use.count;
    use.bytes += bytes;
    return {};
  }
  void release_for_address(const std::string& address, int64_t bytes = 0) {
    const auto found = of_address_.find(address);
    if (found == of_address_.end()) return;
    found->second.bytes -= bytes;
    if (--found->second.count == 0) of_address_.erase(found);
  }

  // Whether it is not for its own limits that this address has no place for one more.
  [[nodiscard]] bool may_have(const std::string& address, int64_t bytes) const {
    return exceeded_limit_option(address, bytes).empty();
  }

  // An open connection `held` so many bytes and now takes `bytes`. False, and no change, when there
  // is no space: in all, or in the half that one address may have.
  bool try_resize_held_bytes(const std::string& address, int64_t& held, int64_t bytes) {
    const int64_t more = bytes - held;
    Use* use = address.empty() ? nullptr : &of_address_[address];
    if (more > 0) {
      if (use != nullptr && use->bytes + more > bytes_.limit() / 2) return false;
      if (!bytes_.take_only("", more)) return false;
    } else {
      bytes_.give_back("", -more);
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
  [[nodiscard]] std::string_view exceeded_limit_option(const std::string& address,
                                                       int64_t bytes) const {
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
        exceeded_limit_option_(limit.charge_address(address_, bytes)) {}
  ~ProxiedRequest() {
    if (exceeded_limit_option_.empty()) limit_.release_for_address(address_, bytes_);
  }
  ProxiedRequest(const ProxiedRequest&) = delete;
  ProxiedRequest& operator=(const ProxiedRequest&) = delete;
  // The option that forbids it; empty: it is within them.
  [[nodiscard]] std::string_view exceeded_limit_option() const { return exceeded_limit_option_; }

 private:
  ConnectionLimit& limit_;
  std::string address_;
  int64_t bytes_;
  std::string_view exceeded_limit_option_;
};

// Who may be closed for a newcomer: strangers, whose present request has no key, whatever they do,
// and of tenants what waits for its next request, until its header is whole. The one that has been
// so for longest goes, strangers before tenants.
template <typename Connection>
class IdleConnections {
 public:
  void remove(Connection& one) {
    strangers_.erase(one.idle_order);
    known_.erase(one.idle_order);
  }

  // From when one waits for its next request until something has arrived.
  void begin_idle(Connection& one) {
    remove(one);
    one.idle_order = ++last_;
    (one.tenant.empty() ? strangers_ : known_).emplace(one.idle_order, &one);
  }
  void end_idle(Connection& one) {
    if (!one.tenant.empty()) remove(one);
  }
  // Whose key its request has; empty: it has none.
  void set_tenant(Connection& one, const std::string& tenant) {
    remove(one);
    one.tenant = tenant;
    if (tenant.empty()) begin_idle(one);
  }

  // Which to close for one more; null: none that may be.
  [[nodiscard]] Connection* victim() const {
    if (!strangers_.empty()) return strangers_.begin()->second;
    return known_.empty() ? nullptr : known_.begin()->second;
  }

 private:
  uint64_t last_ = 0;
  std::map<uint64_t, Connection*> strangers_, known_;  // oldest first
};

// A Connection has a stream, a buffer, `counted` (its address here), `held` (its bytes here),
// `tenant` and `idle_order` for IdleConnections, `has_place`, and `is_evicted`: it counts no
// longer, and is about to end.
template <typename Connection>
class Places {
 public:
  explicit Places(ConnectionLimit limit) : limit_(std::move(limit)) {}

  // Takes a place, an idle connection's if none is free; or gives the option that forbids it.
  std::string_view claim_place(Connection& one) {
    std::string_view option = take_place(one);
    if (option.empty() || !limit_.may_have(one.counted, connection_bytes(one.stream.is_secured())))
      return option;
    return try_evict_idle() ? take_place(one) : option;
  }
  // Gives back the place, where the connection has one.
  void release_place(Connection& one) {
    if (!std::exchange(one.has_place, false)) return;
    limit_.try_resize_held_bytes(one.counted, one.held, 0);
    idles_.remove(one);
    limit_.release(one.counted);
  }

  // What it takes now: itself, and its header twice, as it came and in the request that is
  // answered. False, and nothing changes, when there is no space for that.
  bool try_recount_bytes(Connection& one) {
    if (one.is_evicted) return false;
    const size_t grown = std::max(one.buffer.capacity(), kFirstRead) - kFirstRead;
    const int64_t bytes =
        connection_bytes(one.stream.is_secured()) + 2 * static_cast<int64_t>(grown);
    return limit_.try_resize_held_bytes(one.counted, one.held, bytes);
  }

  // It waits for a request, until end_idle().
  void begin_idle(Connection& one) {
    if (!one.is_evicted) idles_.begin_idle(one);
  }
  // It was refused, and only listens whether its peer has read that: anybody may have its place.
  void begin_linger(Connection& one) { set_tenant(one, ""); }
  void end_idle(Connection& one) {
    if (!one.is_evicted) idles_.end_idle(one);
  }
  // It is answered: a request with a key, or a signed URL, of this tenant; or one with none.
  void set_tenant(Connection& one, const std::string& tenant) {
    if (!one.is_evicted) idles_.set_tenant(one, tenant);
  }

  [[nodiscard]] ConnectionLimit& limit() { return limit_; }

 private:
  // Takes a place without evicting anybody; or gives the option that forbids it.
  std::string_view take_place(Connection& one) {
    const std::string_view option = limit_.admit_address(one.counted);
    if (!option.empty()) return option;
    one.has_place = true;  // release_place() is right from here on, whatever throws
    if (!try_recount_bytes(one)) {
      release_place(one);
      return "--max-connection-bytes";
    }
    idles_.begin_idle(one);  // nobody's yet
    return {};
  }
  bool try_evict_idle() {
    Connection* idle = idles_.victim();
    if (idle == nullptr) return false;
    release_place(*idle);
    idle->is_evicted = true;
    idle->stream.close();
    return true;
  }

  ConnectionLimit limit_;
  IdleConnections<Connection> idles_;
};

// Connection: what a connection of the server's is, from when it is accepted until it ends. I/O
// thread.
struct Connection : std::enable_shared_from_this<Connection> {
  Connection(Stream::Protocol::socket&& socket, TlsContext tls)
      : stream(std::move(socket), std::move(tls)) {}
  Stream stream;
  boost::beast::flat_buffer buffer{kMaxBuffer};
  bool idle = true;         // between two exchanges
  bool fresh = true;        // nothing has arrived yet
  std::string address;      // empty: loopback
  bool is_proxied = false;  // a trusted proxy's
  std::string counted;      // where it counts, as far as that is known before a request
  int64_t held = 0;         // bytes that it counts with
  uint64_t idle_order = 0;
  std::string tenant;  // of the last request; empty: it had no key that holds
  bool has_place = false;
  bool is_evicted = false;  // ends, and has no place any more

  // What it keeps while its request is answered, and while it idles, is what little it took at
  // first; what arrived early stays.
  void shrink() {
    if (buffer.capacity() > kFirstRead) buffer.shrink_to_fit();
  }
};

}  // namespace strata::server
