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
