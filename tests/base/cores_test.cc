// SPDX-License-Identifier: Apache-2.0
// Cores that a process may use, and binding to some of them.
#include "base/cores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace strata {
namespace {

TEST(Cores, AreThoseOfAllNodes) {
  std::vector<int> cores = cores_by_node();
  ASSERT_EQ(std::ssize(cores), usable_cores());
  std::sort(cores.begin(), cores.end());
  std::string list;
  for (const int core : cores) list += (list.empty() ? "" : ",") + std::to_string(core);
  EXPECT_EQ(list, usable_core_list());
}

TEST(Cores, AreOnNodes) {
  const std::string all = usable_node_list();
  EXPECT_TRUE(all.empty() || (all.front() >= '0' && all.front() <= '9')) << all;
  std::thread([&] {
    const int last = cores_by_node().back();
    ASSERT_TRUE(bind_to_cores({&last, 1}));
    const std::string own = usable_node_list();  // one of them
    EXPECT_EQ(own.find(','), std::string::npos) << own;
    EXPECT_TRUE(("," + all + ",").find("," + own + ",") != std::string::npos) << own;
  }).join();
}

// Of the thread that asks; how many there were before stays known.
TEST(Cores, AThreadIsBoundToSome) {
  const int before = usable_cores();
  EXPECT_EQ(shared_cores(), before);
  std::thread([] {
    const int last = cores_by_node().back();
    ASSERT_TRUE(bind_to_cores({&last, 1}));
    EXPECT_EQ(usable_core_list(), std::to_string(last));
    std::thread([] { EXPECT_EQ(usable_cores(), 1); }).join();
  }).join();
  EXPECT_EQ(usable_cores(), before);
  EXPECT_EQ(shared_cores(), before);
}

}  // namespace
}  // namespace strata
