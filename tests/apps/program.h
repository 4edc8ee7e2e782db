// SPDX-License-Identifier: Apache-2.0
// The program itself, run with arguments as a user types them: what it wrote and its exit code.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"

namespace strata::apps {

struct Ran {
  int exit_code = -1;  // 128 and the signal's number where one ended it
  std::string out;     // of a terminal: both
  std::string err;
};

struct Surroundings {
  std::string folder = {};                            // to run in
  std::map<std::string, std::string> variables = {};  // set; an empty text: not set
};

namespace program_detail {

[[noreturn]] inline void become(const std::vector<std::string>& arguments,
                                const Surroundings& around) {
  if (!around.folder.empty() && ::chdir(around.folder.c_str()) != 0) ::_exit(126);
  for (const auto& [name, value] : around.variables) {
    if (value.empty()) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  std::vector<std::string> texts = {STRATA_BINARY};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  ::execv(STRATA_BINARY, argv.data());
  ::_exit(127);
}

inline int code_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace program_detail

// Without input.
inline Ran run_program(const std::vector<std::string>& arguments, const Surroundings& around = {}) {
  std::string base = testing::TempDir() + "strata_ran_XXXXXX";
  EXPECT_NE(::mkdtemp(base.data()), nullptr);
  const std::string out = base + "/out";
  const std::string err = base + "/err";
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open("/dev/null", O_RDONLY), 0);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), 1);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), 2);
    program_detail::become(arguments, around);
  }
  Ran ran;
  ran.exit_code = program_detail::code_of(child);
  ran.out = read_file(out, 1 << 24);
  ran.err = read_file(err, 1 << 24);
  std::filesystem::remove_all(base);
  return ran;
}

// On a terminal of its own.
inline Ran run_on_terminal(const std::vector<std::string>& arguments,
                           const Surroundings& around = {}) {
  int master = -1;
  const pid_t child = ::forkpty(&master, nullptr, nullptr, nullptr);
  if (child == 0) program_detail::become(arguments, around);
  Ran ran;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(master, buffer, sizeof(buffer))) > 0;) {
    ran.out.append(buffer, static_cast<size_t>(got));
  }
  ran.exit_code = program_detail::code_of(child);
  ::close(master);
  return ran;
}

}  // namespace strata::apps
