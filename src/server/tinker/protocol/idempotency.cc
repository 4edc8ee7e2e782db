// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/idempotency.h"

#include <string>

#include "base/crypto.h"
#include "base/hash.h"

namespace strata::server {
namespace {

constexpr size_t kMostKept = 256;  // characters

}  // namespace

Idempotency idempotency_of(const Request& request) {
  std::string key(request.header("x-idempotency-key"));
  if (key.size() > kMostKept) key = "sha256:" + to_hex(sha256(key));
  return {std::move(key), static_cast<int64_t>(Hash::of(request.body))};
}

}  // namespace strata::server
