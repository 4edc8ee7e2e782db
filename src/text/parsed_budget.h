// SPDX-License-Identifier: Apache-2.0
// ParsedBudget: what a body takes when it is parsed, several times its own size perhaps, taken from
// the same limit as the body, as parsing goes on. What is small is not counted. One thread at a
// time.
#pragma once
#include <cstddef>
#include <string>

#include "base/account.h"

namespace strata::text {

class ParsedBudget {
 public:
  // `request` holds its body; `where` begins a complaint.
  ParsedBudget(const Charge& request, std::string where);
  // So many bytes in all. Throws Busy when there is no space for more now, and Error when there can
  // never be.
  void resize_hold(size_t bytes);

 private:
  std::string where_;
  int64_t body_ = 0;
  Charge parsed_;
};

}  // namespace strata::text
