// SPDX-License-Identifier: Apache-2.0
// IdleConnections: who of which address waits for a request, oldest first. Where no connection is
// left, the address that holds the most gives up its oldest idle one for a newcomer from an address
// that holds fewer, so that a few clients that hold all cannot keep others out. I/O thread.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace strata::server {

template <typename Connection>
class IdleConnections {
 public:
  void opened(const std::string& address) { count(address, 1); }
  void closed(const std::string& address) { count(address, -1); }

  // From when one waits for its next request until something has arrived.
  void begin(const std::string& address, Connection& one) {
    one.idle_order = ++last_;
    of_address_[address].idle.emplace(one.idle_order, &one);
  }
  void end(const std::string& address, Connection& one) {
    const auto found = of_address_.find(address);
    if (found != of_address_.end()) found->second.idle.erase(one.idle_order);
  }

  // Which to close for one more of this address; null: nobody holds so many more.
  [[nodiscard]] Connection* victim(const std::string& newcomer) const {
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
  std::map<std::string, Held> of_address_;  // with connections
  std::set<std::pair<int64_t, std::string>> by_count_;
};

}  // namespace strata::server
