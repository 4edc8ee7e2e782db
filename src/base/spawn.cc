// SPDX-License-Identifier: Apache-2.0
#include "base/spawn.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <csignal>

namespace strata {
namespace {

struct SpawnPlan {
  explicit SpawnPlan(const SpawnFiles& of) {
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_adddup2(&files, of.in, STDIN_FILENO);
    if (of.out >= 0) {
      ::posix_spawn_file_actions_adddup2(&files, of.out, STDOUT_FILENO);
    } else {
      ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    }
    if (!of.log.empty()) {
      ::posix_spawn_file_actions_addopen(&files, STDERR_FILENO, of.log.c_str(),
                                         O_WRONLY | O_CREAT | O_APPEND, 0666);
    }
    if (of.alone) ::posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    ::posix_spawnattr_init(&attributes);
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  posix_spawn_file_actions_t files = {};
  posix_spawnattr_t attributes = {};
};

}  // namespace

int spawn_in_group(const std::string& program, std::vector<std::string> words,
                   const SpawnFiles& files, int& child) {
  const SpawnPlan plan(files);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  char* no_variables[] = {nullptr};
  pid_t started = 0;
  const int fault = ::posix_spawn(&started, program.c_str(), &plan.files, &plan.attributes,
                                  arguments.data(), files.alone ? no_variables : environ);
  if (fault == 0) child = started;
  return fault;
}

}  // namespace strata
