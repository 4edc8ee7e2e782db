// SPDX-License-Identifier: Apache-2.0
// How many cores this process may use. Any thread.
#pragma once

namespace strata {

int usable_cores();

}  // namespace strata
