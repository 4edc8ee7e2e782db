// SPDX-License-Identifier: Apache-2.0
// Budget: what tenants may make the server hold: what their requests do, at their accounts
// (base/account.h), and what is kept for them between requests, whose keeper has a copy of its
// limit. Each is a SharedLimit: a tenant that takes all it can get leaves every other one its part.
// All bytes in memory are taken off --memory before the rest is planned. Any thread.
//   resolve_size_limits(options, memory);  Budget budget(options);
//   Scheduler s({.accounts = budget.accounts});
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/account.h"
#include "base/shared_limit.h"
#include "server/tinker/options/options.h"

namespace strata::server {

// Fills the sizes that nobody gave: shares of --request-memory, which they come to, or of `memory`
// bytes. Raises max_body_bytes, also one that was given, to some of the largest bodies.
void resolve_size_limits(ServeOptions& options, int64_t memory);

class Budget {
 public:
  explicit Budget(const ServeOptions& options);

  Accounts accounts;
  // Bytes.
  SharedLimit remembered;   // numbers of requests that came before
  SharedLimit samplers;     // sampling sessions in use
  SharedLimit connections;  // that are open; nobody's share (http/places.h)
  SharedLimit grammars;     // of answers that fit a schema, kept or in use
  // Bytes on the disk, besides the checkpoints.
  SharedLimit archives;
  // What whoever runs the commands has of its own, divided by as many tenants.
  std::vector<SharedLimit> of_engines;

  // Those that are bytes.
  struct Row {
    const char* name;
    int64_t limit;
    int64_t held;
  };
  [[nodiscard]] std::vector<Row> bytes_by_use() const;
  // How many tenants the keys name.
  void set_num_tenants(int64_t count);
  // What to warn of, a line each: that a tenant cannot be sure of space for a small request.
  [[nodiscard]] std::vector<std::string> warnings() const;
};

}  // namespace strata::server
