// SPDX-License-Identifier: Apache-2.0
#include "apps/keygen.h"

#include <fmt/format.h>

#include <string>

#include "server/tinker/keys.h"

namespace strata::apps {

int run_keygen(const KeygenOptions& options) {
  const std::string key = server::generate_key();
  if (options.hash) fmt::print(stderr, "{}\n", key);
  fmt::print("{}\n", options.hash ? server::hashed_key(key) : key);
  return 0;
}

}  // namespace strata::apps
