// SPDX-License-Identifier: Apache-2.0
// How the text of an option becomes a value: sizes and durations.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace strata {

// Throws Error: the value of an option that is none.
[[noreturn]] void refuse_value(const std::string& name, const std::string& text,
                               const std::string& wanted);

// "64MiB", "1 GiB", "1000000", "2GB" in bytes; nothing for what is no size up to 1 PiB.
std::optional<int64_t> find_size(const std::string& text);
// The same of an option, an Error where it is none; "80%" of `whole` where whole > 0.
int64_t parse_size(const std::string& name, const std::string& text, int64_t whole = 0);
// Parses a size of a machine's memory, at least 1 MiB: below it is a number whose unit was
// forgotten.
int64_t parse_memory_size(const std::string& name, const std::string& text, int64_t whole = 0);
// "30", "30s", "500ms", "5m", "2h", "1d" in seconds; > 0.
double parse_duration(const std::string& name, const std::string& text);

}  // namespace strata
