// SPDX-License-Identifier: Apache-2.0
// ConnectionLimit: how many connections are open, in all and from each address; a request that a
// trusted proxy brings counts as a connection of its client. I/O thread.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace strata::server {

class ConnectionLimit {
 public:
  ConnectionLimit(int64_t most, int64_t most_per_address)
      : most_(most), most_per_address_(most_per_address) {}

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
    const auto found = of_address_.try_emplace(address, 0).first;
    if (found->second >= most_per_address_) return false;
    ++found->second;
    return true;
  }
  void leave(const std::string& address) {
    const auto found = of_address_.find(address);
    if (found != of_address_.end() && --found->second == 0) of_address_.erase(found);
  }
  [[nodiscard]] int64_t num_open() const { return all_; }

 private:
  int64_t most_, most_per_address_;
  int64_t all_ = 0;
  std::map<std::string, int64_t> of_address_;
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
