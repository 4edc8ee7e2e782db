// SPDX-License-Identifier: Apache-2.0
// Accounts with a limit of one use, for tests.
#pragma once
#include <cstdint>

#include "base/account.h"

namespace strata::testing {

inline Accounts accounts_with(Use use, int64_t limit, int64_t num_tenants = 1) {
  Accounts accounts;
  accounts.of(use) = SharedLimit(limit);
  accounts.set_num_tenants(num_tenants);
  return accounts;
}

}  // namespace strata::testing
