// SPDX-License-Identifier: Apache-2.0
// CPU quotas of control groups, by which containers, systemd and batch systems say how much of a
// machine's cores a process may have, though its affinity shows all of them.
#pragma once
#include <optional>
#include <string>

namespace strata {

// Cores' worth of time that this process may use: the least quota of its own control group and of
// those above it that can be seen, of version 1 (cpu.cfs_quota_us) and of version 2 (cpu.max). None
// where no group has one. `root` stands before /proc and before mount points.
std::optional<double> read_cpu_quota(const std::string& root = "");

}  // namespace strata
