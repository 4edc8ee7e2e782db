// SPDX-License-Identifier: Apache-2.0
// How --memory is divided for what requests hold, and who takes from what.
#include "server/tinker/budget.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "server/http/server.h"

namespace strata::server {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

int64_t sum(const Budget& budget) {
  int64_t bytes = 0;
  for (const Budget::Row& row : budget.bytes_by_use()) bytes += row.limit;
  return bytes;
}

TEST(Budget, TakesAnEighthOfALargeMemoryAndLittleMoreThanAQuarterOfASmallOne) {
  for (const int64_t memory :
       {64 * kMiB, 200 * kMiB, kGiB, 2 * kGiB, 8 * kGiB, 64 * kGiB, 512 * kGiB}) {
    ServeOptions options;
    resolve_size_limits(options, memory);
    const Budget budget(options);
    EXPECT_LE(sum(budget), memory * 12 / 32) << memory;
    for (const Budget::Row& row : budget.bytes_by_use()) {
      // The last two share one option.
      const std::set<std::string> halves = {"downloads", "remembered", "samplers"};
      const int64_t part = halves.contains(row.name) ? 2 : 1;
      EXPECT_GE(row.limit, std::min(memory / 128, 128 * kMiB) / part) << row.name << ' ' << memory;
      EXPECT_LE(row.limit, kGiB) << row.name;
    }
    EXPECT_GE(options.max_body_bytes, 4 * options.max_body);
    EXPECT_EQ(options.max_body, std::min(64 * kMiB, memory / 32)) << memory;
  }
}

TEST(Budget, SharesOfRequestMemoryComeToIt) {
  for (const int64_t bytes : {64 * kMiB, kGiB, 8 * kGiB}) {
    ServeOptions options;
    options.request_memory = bytes;
    resolve_size_limits(options, 100 * kGiB);
    EXPECT_LE(sum(Budget(options)), bytes);
    EXPECT_GE(sum(Budget(options)), bytes - 16);
    EXPECT_EQ(options.max_body, std::min(64 * kMiB, options.max_body_bytes / 4));
  }
  ServeOptions options;
  options.request_memory = kGiB;
  options.max_result_bytes = 5;
  resolve_size_limits(options, 100 * kGiB);
  EXPECT_EQ(options.max_result_bytes, 5) << "what is given stays";
}

// A flood of them is ended before no space is left for who speaks.
TEST(Budget, UnfinishedHandshakesTakeHalfOfTheConnectionsRoom) {
  for (const int64_t memory : {200 * kMiB, 2 * kGiB, 512 * kGiB}) {
    ServeOptions options;
    options.tls_cert = "cert.pem";
    resolve_size_limits(options, memory);
    EXPECT_LE(options.max_handshakes * connection_bytes(true), options.max_connection_bytes / 2);
    EXPECT_LE(options.max_handshakes, 512);
    EXPECT_GE(options.max_handshakes, memory < kGiB ? 16 : 190);
  }
}

TEST(Budget, WhatIsGivenStays) {
  ServeOptions options;
  options.max_body = 300 * kMiB;
  options.max_result_bytes = 5;
  options.max_queued_bytes = 6;
  options.max_response_bytes = 7;
  options.max_download_bytes = 8;
  options.max_handshakes = 9;
  resolve_size_limits(options, kGiB);
  EXPECT_EQ(options.max_body, 300 * kMiB);
  EXPECT_EQ(options.max_body_bytes, 1200 * kMiB);  // whatever the memory: four must fit
  EXPECT_EQ(options.max_result_bytes, 5);
  EXPECT_EQ(options.max_queued_bytes, 6);
  EXPECT_EQ(options.max_response_bytes, 7);
  EXPECT_EQ(options.max_download_bytes, 8);
  EXPECT_EQ(options.max_handshakes, 9);
  ServeOptions bytes;
  bytes.max_body_bytes = 40 * kMiB;
  resolve_size_limits(bytes, kGiB);
  EXPECT_EQ(bytes.max_body_bytes, 40 * kMiB);
  EXPECT_EQ(bytes.max_body, 10 * kMiB);
}

TEST(Budget, ItsRowsAreWhatIsTakenFromItsLimits) {
  ServeOptions options;
  resolve_size_limits(options, kGiB);
  Budget budget(options);
  budget.set_num_tenants(4);
  SharedLimit queue = budget.accounts.of(Use::kQueue);  // as the scheduler has it
  EXPECT_EQ(queue.own_part(), queue.limit() / 8);
  const SharedLimit::Share share = queue.take("a", 123);
  for (const Budget::Row& row : budget.bytes_by_use())
    EXPECT_EQ(row.held, row.name == std::string("queue") ? 123 : 0) << row.name;
  EXPECT_EQ(budget.accounts.of(Use::kSample).limit(), options.max_queued_samples);
  EXPECT_EQ(budget.accounts.of(Use::kPoll).limit(), options.max_parked);
}

}  // namespace
}  // namespace strata::server
