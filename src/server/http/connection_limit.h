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
    if (address.empty()) return {};
    Use& use = of_address_[address];
    if (use.count >= most_per_address_) return "--max-connections-per-address";
    if (use.bytes + bytes > bytes_.limit() / 2) return "--max-connection-bytes";
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
    const auto found = of_address_.find(address);
    return found == of_address_.end() || (found->second.count < most_per_address_ &&
                                          found->second.bytes + bytes <= bytes_.limit() / 2);
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

}  // namespace strata::server
