// SPDX-License-Identifier: Apache-2.0
// Records of sampled sequences as the store has them: of bytes, and as text, which stores that are
// older hold.
#include "server/tinker/protocol/stability_record.h"

#include <gtest/gtest.h>

namespace strata::server {
namespace {

void expect_record(const std::optional<SampleRecord>& record) {
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->prompt, (std::vector<int32_t>{7}));
  EXPECT_EQ(record->tokens, (std::vector<int32_t>{9, 258}));
  EXPECT_EQ(record->logprobs, (std::vector<float>{-1.0f, -0.5f}));
}

TEST(StabilityRecord, IsReadInBothForms) {
  expect_record(unpack_sequence(pack_tokens({7}), pack_sequence({9, 258}, {-1.0f, -0.5f})));
  expect_record(
      unpack_record("1 2 07000000"
                    "0900000002010000"
                    "000080bf000000bf"));
}

TEST(StabilityRecord, WhatIsNoRecordIsNone) {
  EXPECT_FALSE(unpack_sequence("123", "").has_value());
  EXPECT_FALSE(unpack_sequence("", "1234567").has_value());
  for (const char* text : {"", "1", "1 2 ", "0 1 0900000", "0 1 09000000 00080bf", "x 1 ",
                           "9999999999 1 09000000000080bf", "0 1 09000000000080bF"}) {
    EXPECT_FALSE(unpack_record(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace strata::server
