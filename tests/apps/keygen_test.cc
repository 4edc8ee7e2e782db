// SPDX-License-Identifier: Apache-2.0
// strata keygen, the program itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "server/tinker/keys.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

using strata::testing::read_bytes;
using strata::testing::TempDir;

TEST(Keygen, PrintsAKeyOrItsHashAndTheKeyAside) {
  const TempDir dir;
  const auto run = [&](const std::string& options) {
    return ::system((std::string(STRATA_BINARY) + " keygen " + options + " > " + dir.file("out") +
                     " 2> " + dir.file("err"))
                        .c_str());
  };
  ASSERT_EQ(run(""), 0);
  EXPECT_TRUE(server::KeyRing({.keys_file = dir.file("out")}).num_keys() == 1);
  EXPECT_EQ(read_bytes(dir.file("err")), "");
  ASSERT_EQ(run("--hash"), 0);
  std::string key = read_bytes(dir.file("err"));
  ASSERT_EQ(key.size(), 4u + 43u + 1u);
  key.pop_back();
  EXPECT_EQ(read_bytes(dir.file("out")), server::hashed_key(key) + "\n");
  EXPECT_TRUE(server::KeyRing({.keys_file = dir.file("out")}).identify(key).has_value());
}

}  // namespace
}  // namespace strata::apps
