// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/view/watch.h"

#include <gtest/gtest.h>

#include <string>

namespace strata::server {
namespace {

// A making that failed is sent again with its number.
TEST(Watch, ARunThatBeginsOnceMoreStays) {
  Watch watch;
  watch.note_run_started("s:train:0", {});
  watch.note_run_ended("s:train:0");
  watch.note_run_started("s:train:0", {});
  for (int i = 1; i <= 100; ++i) {
    const std::string id = "s:train:" + std::to_string(i);
    watch.note_run_started(id, {});
    watch.note_run_ended(id);
  }
  EXPECT_TRUE(watch.runs().contains("s:train:0"));
  EXPECT_FALSE(watch.runs().contains("s:train:1"));
  EXPECT_TRUE(watch.runs().contains("s:train:100"));
}

}  // namespace
}  // namespace strata::server
