// SPDX-License-Identifier: Apache-2.0
// Cores that a process may use, and binding to some of them.
#include "base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

namespace {
thread_local size_t kernel_cores = 0;  // of a larger machine, which may use all; 0: of this one
}

// In the place of the C library's, which is this of a machine's own cores.
extern "C" int sched_getaffinity(pid_t thread, size_t bytes, cpu_set_t* set) noexcept {
  if (kernel_cores == 0) {
    const auto written = ::syscall(SYS_sched_getaffinity, thread, bytes, set);
    if (written < 0) return -1;
    const auto filled = static_cast<size_t>(written);
    std::memset(reinterpret_cast<char*>(set) + filled, 0, bytes - filled);
    return 0;
  }
  if (bytes * 8 < kernel_cores) {
    errno = EINVAL;
    return -1;
  }
  CPU_ZERO_S(bytes, set);
  for (size_t core = 0; core < kernel_cores; ++core) CPU_SET_S(core, bytes, set);
  return 0;
}

namespace strata {
namespace {

TEST(Cores, AreThoseOfAllNodes) {
  std::vector<int> cores = usable_cores_by_node();
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
    const int last = usable_cores_by_node().back();
    ASSERT_TRUE(bind_to_cores({&last, 1}));
    const std::string own = usable_node_list();  // one of them
    EXPECT_EQ(own.find(','), std::string::npos) << own;
    EXPECT_TRUE(("," + all + ",").find("," + own + ",") != std::string::npos) << own;
  }).join();
}

TEST(Cores, AreAllThoseOfALargeMachine) {
  for (const size_t cores : {1023, 1024, 1025, 5000}) {
    std::thread([cores] {
      kernel_cores = cores;
      EXPECT_EQ(usable_cores(), static_cast<int>(cores));
      const std::vector<int> numbers = usable_cores_by_node();
      ASSERT_EQ(numbers.size(), cores);
      EXPECT_EQ(*std::max_element(numbers.begin(), numbers.end()), static_cast<int>(cores) - 1);
      EXPECT_TRUE(usable_core_list().ends_with("," + std::to_string(cores - 1)));
    }).join();
  }
}

// Of the thread that asks; how many there were before stays known.
TEST(Cores, AThreadIsBoundToSome) {
  const int before = usable_cores();
  EXPECT_EQ(shared_cores(), before);
  std::thread([] {
    const int last = usable_cores_by_node().back();
    ASSERT_TRUE(bind_to_cores({&last, 1}));
    EXPECT_EQ(usable_core_list(), std::to_string(last));
    std::thread([] { EXPECT_EQ(usable_cores(), 1); }).join();
  }).join();
  EXPECT_EQ(usable_cores(), before);
  EXPECT_EQ(shared_cores(), before);
}

}  // namespace
}  // namespace strata
