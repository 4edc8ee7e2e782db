// SPDX-License-Identifier: Apache-2.0
#include "base/env.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace strata {
namespace {

std::string text_of(const char* value) { return value == nullptr ? "" : value; }

}  // namespace

std::string env_cpu_path() { return text_of(std::getenv("STRATA_CPU_PATH")); }
std::string env_notify_socket() { return text_of(std::getenv("NOTIFY_SOCKET")); }
std::string env_watchdog_pid() { return text_of(std::getenv("WATCHDOG_PID")); }
std::string env_watchdog_usec() { return text_of(std::getenv("WATCHDOG_USEC")); }

std::string env_mpi_size() {
  const std::string of_mpirun = text_of(std::getenv("OMPI_COMM_WORLD_SIZE"));
  return of_mpirun.empty() ? text_of(std::getenv("SLURM_STEP_NUM_TASKS")) : of_mpirun;
}

std::string env_temporary_folder() {
  const std::string folder = text_of(std::getenv("TMPDIR"));
  return folder.empty() ? "/tmp" : folder;
}

std::string env_home() { return text_of(std::getenv("HOME")); }
std::string env_terminal() { return text_of(std::getenv("TERM")); }

std::string env_state_folder() {
  const std::string folder = text_of(std::getenv("XDG_STATE_HOME"));
  if (folder.starts_with('/')) return folder;
  const std::string home = env_home();
  return home.starts_with('/') ? home + "/.local/state" : "";
}

std::vector<std::string> env_hub_caches() {
  struct Place {
    const char* variable;
    const char* below;
  };
  constexpr Place kPlaces[] = {{"HF_HUB_CACHE", ""},
                               {"HF_HOME", "/hub"},
                               {"XDG_CACHE_HOME", "/huggingface/hub"},
                               {"HOME", "/.cache/huggingface/hub"}};
  std::vector<std::string> caches;
  for (const Place& place : kPlaces) {
    const std::string value = text_of(std::getenv(place.variable));
    if (!value.empty()) caches.push_back(value + place.below);
  }
  return caches;
}

int env_log_level() {
  const std::string value = text_of(std::getenv("STRATA_LOG"));
  if (value.empty()) return 1;
  if (value.size() == 1 && value[0] >= '0' && value[0] <= '4') return value[0] - '0';
  throw Error(ErrorCode::kInvalidArgument, "STRATA_LOG: got '" + value + "', want 0, 1, 2, 3 or 4");
}

std::map<std::string, std::string> env_strata_variables() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t sign = text.find('=');
    if (!text.starts_with("STRATA_") || sign == std::string_view::npos) continue;
    variables.emplace(text.substr(0, sign), text.substr(sign + 1));
  }
  return variables;
}

}  // namespace strata
