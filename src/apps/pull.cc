// SPDX-License-Identifier: Apache-2.0
#include "apps/pull.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"
#include "setup/hub_cache.h"

namespace strata::apps {
namespace {

// Starts `hf download NAME` on this terminal; no shell reads the name.
pid_t start_download(const std::string& name) {
  std::string program = "hf";
  std::string verb = "download";
  std::string model = name;
  char* const arguments[] = {program.data(), verb.data(), model.data(), nullptr};
  pid_t child = 0;
  const int fault = ::posix_spawnp(&child, "hf", nullptr, nullptr, arguments, environ);
  if (fault == ENOENT) {
    throw Error(
        ErrorCode::kNotFound,
        fmt::format("pull: there is no program hf on PATH, which downloads from the Hugging "
                    "Face hub; to install it: pip install huggingface_hub; then again: "
                    "strata pull {}",
                    name));
  }
  if (fault != 0) {
    throw Error(ErrorCode::kIo, fmt::format("pull: hf: {}", std::strerror(fault)));
  }
  return child;
}

int wait_for_exit_code(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      throw Error(ErrorCode::kIo, fmt::format("pull: waiting for hf: {}", std::strerror(errno)));
    }
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void check_is_hub_name(const std::string& name) {
  if (is_hub_name(name)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("pull: got '{}', want ORG/NAME of the Hugging Face hub, like "
                          "Qwen/Qwen3-0.6B",
                          name));
}

void download(const std::string& name) {
  const int code = wait_for_exit_code(start_download(name));
  if (code == 0) return;
  throw Error(ErrorCode::kIo, fmt::format("pull: hf download {} ended with exit code {}; what it "
                                          "wrote above says why",
                                          name, code));
}

std::string find_downloaded(const std::string& name) {
  if (const auto dir = find_in_hub_cache(name)) return *dir;
  throw Error(ErrorCode::kNotFound,
              fmt::format("pull: hf download {} ended well, and yet its model is in no cache of "
                          "the hub (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub)",
                          name));
}

}  // namespace

int run_pull(const PullOptions& options) {
  const std::string& name = options.model;
  check_is_hub_name(name);
  download(name);
  fmt::print(stderr, "{} is in {}\nTalk to it: strata chat {}\n", name, find_downloaded(name),
             name);
  return 0;
}

}  // namespace strata::apps
