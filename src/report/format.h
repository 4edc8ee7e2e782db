// SPDX-License-Identifier: Apache-2.0
// Numbers for people: sizes, counts and times in the shortest form that still says enough.
#pragma once
#include <cstdint>
#include <string>

namespace strata::report {

std::string format_bytes(int64_t bytes);      // "512 B", "1.5 MiB", "12.3 GiB"
std::string format_count(double count);       // "950", "12.3 k", "3.2 M", "1.7 G"
std::string format_duration(double seconds);  // "0.8 s", "42 s", "3:05", "2:03:05", "3 d 4 h"
std::string format_seconds(double seconds);   // the same, but "23 ms" below one second

}  // namespace strata::report
