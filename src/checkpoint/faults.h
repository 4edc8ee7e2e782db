// SPDX-License-Identifier: Apache-2.0
// FaultList: all that is wrong with a file, reported in one Error, so that a user mends it once.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace strata {

class FaultList {
 public:
  static constexpr size_t kMaxShown = 50;
  explicit FaultList(std::string where);
  void add(std::string fault);
  [[nodiscard]] bool empty() const { return count_ == 0; }
  // Throws Error{kInvalidArgument} when there is a fault: `where`, then one line a fault.
  void throw_faults() const;

 private:
  std::string where_;
  std::vector<std::string> shown_;
  size_t count_ = 0;
};

}  // namespace strata
