// SPDX-License-Identifier: Apache-2.0
// What a process may have of the machine's memory where control groups limit it.
#include "base/process_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/base/temp_dir.h"

namespace strata {
namespace {

class UsableMemory : public ::testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  [[nodiscard]] int64_t usable() const { return read_usable_memory(root_.path()); }

  testing::TempDir root_;
};

TEST_F(UsableMemory, IsTheMachinesWhereNothingLimitsIt) {
  const int64_t machine = usable();
  EXPECT_GT(machine, int64_t{1} << 28);
  put("/proc/self/cgroup", "0::/a/b");
  put("/sys/fs/cgroup/a/b/memory.max", "max");
  put("/sys/fs/cgroup/a/memory.max", std::to_string(machine + 1));
  EXPECT_EQ(usable(), machine);
}

TEST_F(UsableMemory, IsTheLeastOfTheGroupsAroundTheProcess) {
  put("/proc/self/cgroup", "1:cpu:/c\n0::/a/b");
  put("/sys/fs/cgroup/a/b/memory.max", "200000000");
  EXPECT_EQ(usable(), 200000000);
  put("/sys/fs/cgroup/a/memory.max", "100000000");
  EXPECT_EQ(usable(), 100000000);
  put("/sys/fs/cgroup/memory.max", "50000000");  // a container's own view
  EXPECT_EQ(usable(), 50000000);
}

TEST_F(UsableMemory, KnowsTheFirstVersionToo) {
  put("/proc/self/cgroup", "4:memory:/docker/1\n3:cpuset:/\n0::/");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "70000000");
  EXPECT_EQ(usable(), 70000000);
  put("/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "60000000");
  EXPECT_EQ(usable(), 60000000);
}

}  // namespace
}  // namespace strata
