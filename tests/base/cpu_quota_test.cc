// SPDX-License-Identifier: Apache-2.0
// CPU quotas of control groups, in folders that look as /proc and /sys/fs/cgroup do on a machine,
// in a container and under systemd.
#include "base/cpu_quota.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/base/temp_dir.h"

namespace strata {
namespace {

using testing::TempDir;

constexpr const char* kV2Mount =
    "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kV1Mounts =
    "32 31 0:29 / /sys/fs/cgroup/cpuset rw shared:5 - cgroup cgroup rw,cpuset\n"
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

class Groups {
 public:
  Groups(const std::string& cgroup, const std::string& mountinfo) {
    write("/proc/self/cgroup", cgroup);
    write("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mountinfo);
  }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = dir_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  [[nodiscard]] std::optional<double> quota() const { return read_cpu_quota(dir_.path()); }

 private:
  TempDir dir_;
};

TEST(CpuQuota, IsTheLeastOfTheGroupAndThoseAbove) {
  const Groups groups("0::/user.slice/job.scope\n", kV2Mount);
  EXPECT_EQ(groups.quota(), std::nullopt);
  groups.write("/sys/fs/cgroup/user.slice/job.scope/cpu.max", "max 100000\n");
  EXPECT_EQ(groups.quota(), std::nullopt);
  groups.write("/sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n");
  EXPECT_EQ(groups.quota(), 1.5);
  groups.write("/sys/fs/cgroup/user.slice/job.scope/cpu.max", "250000 100000\n");
  EXPECT_EQ(groups.quota(), 1.5) << "of the slice";
  groups.write("/sys/fs/cgroup/user.slice/job.scope/cpu.max", "50000 100000\n");
  EXPECT_EQ(groups.quota(), 0.5);
  groups.write("/sys/fs/cgroup/other.slice/cpu.max", "10000 100000\n");
  EXPECT_EQ(groups.quota(), 0.5) << "the other slice's is not ours";
}

// A container with a namespace of its own is at the top.
TEST(CpuQuota, OfAContainerIsThatOfTheMountPoint) {
  const Groups own("0::/\n", kV2Mount);
  own.write("/sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(own.quota(), 3.0);
  // Without one it is named as the host names it, and so is the top of what is mounted.
  const Groups named("5:cpu,cpuacct:/docker/abc/inner\n",
                     "33 31 0:30 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n");
  named.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  named.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(named.quota(), 2.0);
  named.write("/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "50000\n");
  named.write("/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(named.quota(), 1.0);
}

TEST(CpuQuota, OfVersionOneIsReadWhereTheCpuControllerIs) {
  const Groups groups("9:name=systemd:/a\n3:cpuset:/b\n2:cpu,cpuacct:/c/d\n0::/\n", kV1Mounts);
  groups.write("/sys/fs/cgroup/cpuset/b/cpu.cfs_quota_us", "100000\n");
  groups.write("/sys/fs/cgroup/cpuset/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(groups.quota(), std::nullopt);
  groups.write("/sys/fs/cgroup/cpu,cpuacct/c/d/cpu.cfs_quota_us", "-1\n");
  groups.write("/sys/fs/cgroup/cpu,cpuacct/c/d/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(groups.quota(), std::nullopt) << "-1: none";
  groups.write("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "400000\n");
  groups.write("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(groups.quota(), 4.0);
}

TEST(CpuQuota, OfFilesThatSayNothingIsNone) {
  EXPECT_EQ(read_cpu_quota("/no/such/folder"), std::nullopt);
  const Groups groups("\n:\n0\n0:\n0::\n", std::string(kV2Mount) + "\n33 31\n- cgroup2\n");
  EXPECT_EQ(groups.quota(), std::nullopt);
  for (const char* text : {"", "\n", "many 100000", "100000", "100000 0", "-5 100000"}) {
    groups.write("/sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(groups.quota(), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace strata
