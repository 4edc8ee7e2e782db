// SPDX-License-Identifier: Apache-2.0
// Which cores this process may use, and how many. Any thread.
#pragma once
#include <span>
#include <string>
#include <vector>

namespace strata {

int usable_cores();
// Before this process was bound to some of them.
int shared_cores();
// Threads that can run at once: a core each, but no more than whole cores that the CPU quotas of
// control groups allow (base/cpu_quota.h), and at least one. More threads than a quota has cores
// are stopped in turn while the others wait for them.
int usable_threads();
// Before this process was bound to some of the cores.
int shared_threads();
// Their numbers, those of a NUMA node one behind the other.
std::vector<int> usable_cores_by_node();
// This thread, and those that it starts from now on, run on these alone. False where the system
// does not let them.
bool bind_to_cores(std::span<const int> cores);
// "0,1,6": numbers of the machine's.
std::string usable_core_list();
// "0,1": the NUMA nodes that they are on; empty where the kernel says nothing.
std::string usable_node_list();

}  // namespace strata
