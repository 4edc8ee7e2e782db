// SPDX-License-Identifier: Apache-2.0
// Which build this is; cmake/version.cmake writes the values.
#pragma once

namespace strata::apps {

extern const char* const kVersion;
extern const char* const kCommit;  // as git describe has it; empty where there is no repository
extern const char* const kBuild;   // "Release, GNU 12.2.0"

}  // namespace strata::apps
