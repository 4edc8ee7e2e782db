// SPDX-License-Identifier: Apache-2.0
// What `strata bench` says of its own process.
#pragma once

namespace strata::apps {

// Seconds since this process started, from the kernel's own clock.
double process_age();
double peak_rss_gib();

}  // namespace strata::apps
