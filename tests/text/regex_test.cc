// SPDX-License-Identifier: Apache-2.0
#include "text/regex/regex.h"

#include <gtest/gtest.h>

#include "tests/base/temp_dir.h"

namespace strata::text {
namespace {

int64_t count(const Regex& regex, const std::string& text) {
  int64_t count = 0, steps_left = Regex::steps_for(std::ssize(text));
  const auto take = [&](size_t, size_t) {
    ++count;
    return true;
  };
  EXPECT_TRUE(regex.find_while(text, take, steps_left));
  return count;
}

// Of memory: each is one, where steps are few.
TEST(Regex, PlacesToGoBackToAreBounded) {
  const std::string text(2 * Regex::kMaxFrames, 'a');
  EXPECT_EQ(count(Regex("[ab]*", "p"), text), 1);
  const Regex alternatives("(?:a|bc)*", "p");
  EXPECT_EQ(count(alternatives, text.substr(0, 100'000)), 1);
  EXPECT_NE(testing::error_of([&] { count(alternatives, text); }).find("too much memory"),
            std::string::npos);
}

}  // namespace
}  // namespace strata::text
