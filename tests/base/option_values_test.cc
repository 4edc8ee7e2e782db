// SPDX-License-Identifier: Apache-2.0
#include "base/option_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/base/temp_dir.h"

namespace strata {
namespace {

using strata::testing::error_of;
using ::testing::HasSubstr;

TEST(OptionValues, FindsSizesThatAreNoOptions) {
  EXPECT_EQ(find_size("64MiB"), 64 << 20);
  EXPECT_EQ(find_size("1.5e3"), 1500);
  EXPECT_EQ(find_size("1024TiB"), int64_t{1} << 50);
  for (const char* text : {"", "lots", "-1", "0", "nan", "inf", "80%", "64 MiB more", "1025TiB"})
    EXPECT_EQ(find_size(text), std::nullopt) << text;
}

TEST(OptionValues, ReadsSizesAndDurations) {
  EXPECT_EQ(parse_size("x", "64MiB"), 64 << 20);
  EXPECT_EQ(parse_size("x", "1 GiB"), 1 << 30);
  EXPECT_EQ(parse_size("x", "1.5GB"), 1'500'000'000);
  EXPECT_EQ(parse_size("x", "123"), 123);
  EXPECT_EQ(parse_size("memory", "25%", 1000), 250);
  EXPECT_DOUBLE_EQ(parse_duration("x", "30"), 30);
  EXPECT_DOUBLE_EQ(parse_duration("x", "500ms"), 0.5);
  EXPECT_DOUBLE_EQ(parse_duration("x", "5m"), 300);
  EXPECT_DOUBLE_EQ(parse_duration("x", "2 h"), 7200);
  for (const char* bad : {"", "x", "-1", "0", "5 parsecs", "1e30", "nan", "inf", "5mib"}) {
    EXPECT_THAT(error_of([&] { parse_size("max-body", bad); }), HasSubstr("--max-body")) << bad;
    EXPECT_THAT(error_of([&] { parse_duration("keepalive", bad); }), HasSubstr("--keepalive"))
        << bad;
  }
  EXPECT_THAT(error_of([] { parse_size("x", "10%"); }), HasSubstr("64MiB"));
  EXPECT_EQ(parse_size("x", "1024TiB"), int64_t{1} << 50);
  for (const char* const huge : {"1025TiB", "8000000000000000000", "1e300"})
    EXPECT_THAT(error_of([&] { parse_size("x", huge); }), HasSubstr("1 PiB")) << huge;
}

}  // namespace
}  // namespace strata
