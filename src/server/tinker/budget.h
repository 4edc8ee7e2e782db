// SPDX-License-Identifier: Apache-2.0
// Budget: what requests may make the server hold, by what they hold it as. Each is a SharedLimit
// (base/shared_limit.h): a tenant that takes all it can get leaves every other one its part.
// Whoever holds something for a request has a copy of the limit and takes from it beforehand. The
// bytes of all rows are taken off --memory before the rest is planned. Any thread.
//   fill_unset_and_raise_body_limits(options, memory);  Budget budget(options);  Scheduler
//   s({.queued_bytes = budget.queue});
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/shared_limit.h"
#include "server/tinker/options/options.h"

namespace strata::server {

// Fills the sizes that nobody gave: shares of `memory` bytes. Raises max_body_bytes, also one that
// was given, to some of the largest bodies.
void fill_unset_and_raise_body_limits(ServeOptions& options, int64_t memory);

class Budget {
 public:
  explicit Budget(const ServeOptions& options);

  // Bytes.
  SharedLimit bodies;       // being read, with what reading them takes
  SharedLimit queue;        // commands, from their acceptance to their end
  SharedLimit results;      // until they were fetched, or their time is up
  SharedLimit responses;    // that are being sent and are no results
  SharedLimit downloads;    // pieces of files that are being sent
  SharedLimit remembered;   // numbers of requests that came before
  SharedLimit samplers;     // sampling sessions in use
  SharedLimit connections;  // that are open; nobody's share (http/places.h)
  SharedLimit grammars;     // of answers that fit a schema, kept or in use
  // How many.
  SharedLimit samples;  // that have not begun
  SharedLimit polls;    // that wait
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
