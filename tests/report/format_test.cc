// SPDX-License-Identifier: Apache-2.0
#include "report/format.h"

#include <gtest/gtest.h>

#include <limits>

namespace strata::report {
namespace {

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(int64_t{6} << 20), "6.00 MiB");
  EXPECT_EQ(format_bytes((int64_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(int64_t{5000} << 40), "5000 TiB");
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(12.345), "12.3");
  EXPECT_EQ(format_count(12345), "12.3 k");
  EXPECT_EQ(format_count(999600), "1.00 M");
  EXPECT_EQ(format_count(3.1e6), "3.10 M");
  EXPECT_EQ(format_count(std::numeric_limits<double>::infinity()), "?");
}

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0.84), "0.8 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(185), "3:05");
  EXPECT_EQ(format_duration(7385), "2:03:05");
  EXPECT_EQ(format_duration(86400 * 3 + 4 * 3600), "3 d 4 h");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(1e300), "?");
  EXPECT_EQ(format_seconds(0.0234), "23.4 ms");
  EXPECT_EQ(format_seconds(0.9994), "999 ms");
  EXPECT_EQ(format_seconds(0.9996), "1.0 s");
  EXPECT_EQ(format_seconds(1240), "20:40");  // not 1.24e+03 s
}

}  // namespace
}  // namespace strata::report
