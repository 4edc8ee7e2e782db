// SPDX-License-Identifier: Apache-2.0
// ConnectionLimit: how many connections are open, in all and from each address. I/O thread.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace strata::server {

class ConnectionLimit {
 public:
  ConnectionLimit(int64_t most, int64_t most_per_address)
      : most_(most), most_per_address_(most_per_address) {}

  // Counts one more from this address ("": loopback, which has no limit of its own); or the option
  // that forbids it, and nothing is counted.
  std::string_view open(const std::string& address) {
    if (all_ >= most_) return "--max-connections";
    if (!address.empty()) {
      int64_t& count = of_address_[address];
      if (count >= most_per_address_) return "--max-connections-per-address";
      ++count;
    }
    ++all_;
    return {};
  }
  void close(const std::string& address) {
    --all_;
    const auto found = of_address_.find(address);
    if (found != of_address_.end() && --found->second == 0) of_address_.erase(found);
  }
  [[nodiscard]] int64_t num_open() const { return all_; }

 private:
  int64_t most_, most_per_address_;
  int64_t all_ = 0;
  std::map<std::string, int64_t> of_address_;
};

}  // namespace strata::server
