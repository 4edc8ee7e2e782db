// SPDX-License-Identifier: Apache-2.0
// The child process that compiles grammars (structured/compile_process.h): what its main() runs.
#pragma once

namespace strata::structured {

// The program's first word that makes it this child; people do not type it.
inline constexpr const char* kCompileChildWord = "compile-grammars";

// Answers the frames that come on file 0, one at a time, until it is closed. The exit code.
int run_compile_child();

}  // namespace strata::structured
