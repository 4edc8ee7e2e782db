// SPDX-License-Identifier: Apache-2.0
// Which cores this process may use, and how many. Any thread.
#pragma once
#include <string>

namespace strata {

int usable_cores();
// "0,1,6": numbers of the machine's.
std::string usable_core_list();

}  // namespace strata
