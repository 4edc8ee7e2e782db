// SPDX-License-Identifier: Apache-2.0
// Remembered: which request came with a number of a model or of a sampling session, against
// duplicates: the one table of such numbers. A number is known as long as its future waits: what
// that takes is its command's, and counted where that waits. Once it is answered it takes its
// tenant's space, for which the oldest answered ones of the same thing are forgotten; where that is
// not enough it is forgotten itself. I/O thread only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/shared_limit.h"

namespace strata::server {

// Of a thing: a model, or a sampling session.
struct RequestNumber {
  std::string of = {};  // empty: a request has none
  int64_t number = 0;
};

struct KnownRequest {
  uint64_t fingerprint = 0;
  std::string request;
  int64_t num_samples = 0;
};

class Remembered {
 public:
  // A model's making, which is known as long as the model: there are no more of these than models.
  static constexpr int64_t kMaking = -1;

  explicit Remembered(const SharedLimit& bytes) : bytes_(bytes) {}

  // Null when it did not come, or was forgotten.
  [[nodiscard]] const KnownRequest* find(const RequestNumber& number) const;
  // A request that waits, and that it waits no longer.
  void add(const RequestNumber& number, KnownRequest known);
  void settle(const std::string& tenant, const RequestNumber& number, const std::string& request);
  // All numbers of a thing; how many there were.
  int64_t forget(const std::string& of);
  // Those of the first thing whose name begins with this; how many. 0: there are no more.
  int64_t forget_below(const std::string& prefix);

 private:
  struct Entry {
    KnownRequest known;
    SharedLimit::Share bytes;  // of one that was answered
  };
  struct Numbers {  // of a thing, one at least
    std::map<int64_t, Entry> waiting, answered;
    SharedLimit::Share bytes;  // its own, where any of the answered takes some
  };
  [[nodiscard]] bool take_space(const std::string& tenant, Numbers& numbers,
                                SharedLimit::Share& bytes);
  static bool forget_oldest(Numbers& numbers);

  SharedLimit bytes_;
  std::map<std::string, Numbers> things_;
};

}  // namespace strata::server
