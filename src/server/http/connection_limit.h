// SPDX-License-Identifier: Apache-2.0
// ConnectionLimit: how many connections are open, in all and from each address, and the memory that
// they take; a request that a trusted proxy brings counts as a connection of its client. I/O
// thread.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/shared_limit.h"

namespace strata::server {

// What a connection takes but for its header (tests/server/http measures it): what it is and what
// waits for its bytes; with TLS a session, and its records on their way in and out.
constexpr int64_t connection_bytes(bool is_secured) { return is_secured ? 112 << 10 : 12 << 10; }

class ConnectionLimit {
 public:
  // `bytes` is nobody's share but all connections' together.
  ConnectionLimit(int64_t most, int64_t most_per_address, SharedLimit bytes)
      : most_(most), most_per_address_(most_per_address), bytes_(std::move(bytes)) {}

  // Counts one more from this address ("": loopback, which has no limit of its own); or the option
  // that forbids it, and nothing is counted.
  std::string_view open(const std::string& address) {
    if (all_ >= most_) return "--max-connections";
    if (!enter(address)) return "--max-connections-per-address";
    ++all_;
    return {};
  }
  void close(const std::string& address) {
    --all_;
    leave(address);
  }

  // The same of its address alone; false, and nothing is counted, beyond its limit.
  bool enter(const std::string& address) {
    if (address.empty()) return true;
    Use& use = of_address_[address];
    if (use.count >= most_per_address_) return false;
    ++use.count;
    return true;
  }
  void leave(const std::string& address) {
    const auto found = of_address_.find(address);
    if (found != of_address_.end() && --found->second.count == 0) of_address_.erase(found);
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
  int64_t most_, most_per_address_;
  SharedLimit bytes_;
  int64_t all_ = 0;
  std::map<std::string, Use> of_address_;  // with connections or requests
};

// A request that a trusted proxy brought, counted at its client's address as long as it lives.
class ProxiedRequest {
 public:
  // "": nothing is counted.
  ProxiedRequest(ConnectionLimit& limit, std::string address)
      : limit_(limit), address_(std::move(address)), is_within_(limit.enter(address_)) {}
  ~ProxiedRequest() {
    if (is_within_) limit_.leave(address_);
  }
  ProxiedRequest(const ProxiedRequest&) = delete;
  ProxiedRequest& operator=(const ProxiedRequest&) = delete;
  [[nodiscard]] bool is_within() const { return is_within_; }

 private:
  ConnectionLimit& limit_;
  std::string address_;
  bool is_within_;
};

}  // namespace strata::server
