// SPDX-License-Identifier: Apache-2.0
// How a child process is started in a process group of its own, out of reach of the terminal's
// Ctrl-C, with no signal blocked or ignored. Any thread.
//   int child = 0;
//   const int fault = spawn_in_group("/bin/sh", {"sh", "-c", command}, {.in = a, .out = b}, child);
#pragma once
#include <string>
#include <vector>

namespace strata {

// What a child has of ours.
struct SpawnFiles {
  int in = -1;           // becomes its stdin
  int out = -1;          // becomes its stdout; below 0: what it writes is lost
  std::string log = {};  // file that its stderr goes behind; empty: ours
  bool alone = false;    // no other file that is open here, and no environment variable
};

// Starts the file `program` with these words, the first of which is the name that it is told. Sets
// `child`, its process and its group, or returns a fault as errno has it and leaves `child` alone.
[[nodiscard]] int spawn_in_group(const std::string& program, std::vector<std::string> words,
                                 const SpawnFiles& files, int& child);

}  // namespace strata
