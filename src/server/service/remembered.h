// SPDX-License-Identifier: Apache-2.0
// Remembered: how the numbers of a model or a sampling session were answered, against duplicates.
// What they take is the tenant's; for space the oldest of the same thing are forgotten, and where
// that is not enough a number is not remembered: sent again, it is new. I/O thread only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/shared_limit.h"

namespace strata::server {

struct Answered {
  uint64_t fingerprint = 0;
  std::string request;
  int64_t num_samples = 0;
};

class Remembered {
 public:
  explicit Remembered(const SharedLimit& bytes) : bytes_(bytes) {}

  // Null when it did not come, or was forgotten.
  [[nodiscard]] const Answered* find(const std::string& of, int64_t number) const;
  void add(const std::string& tenant, const std::string& of, int64_t number, Answered answered);
  // All numbers; how many there were.
  int64_t forget(const std::string& of);
  // Those of the first thing whose name begins with this; how many. 0: there are no more.
  int64_t forget_below(const std::string& prefix);

 private:
  struct Entry {
    Answered answered;
    SharedLimit::Share bytes;
  };
  SharedLimit bytes_;
  std::map<std::string, std::map<int64_t, Entry>> entries_;  // none is empty
};

}  // namespace strata::server
