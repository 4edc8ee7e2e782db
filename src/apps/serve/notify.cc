// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/notify.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

#include "base/env.h"

namespace strata::apps {

void notify_manager(const std::string& text) {
  const std::string path = env_notify_socket();
  sockaddr_un where = {};
  where.sun_family = AF_UNIX;
  if (path.size() < 2 || path.size() >= sizeof where.sun_path) return;
  path.copy(where.sun_path, path.size());
  if (path[0] == '@') where.sun_path[0] = '\0';  // a name that is no file's
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  ::sendto(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
           reinterpret_cast<const sockaddr*>(&where), size);
  ::close(socket);
}

std::optional<double> watchdog_seconds() {
  const std::string pid = env_watchdog_pid();
  if (!pid.empty() && pid != std::to_string(::getpid())) return std::nullopt;
  const double seconds = std::strtod(env_watchdog_usec().c_str(), nullptr) / 1e6;
  return seconds > 0 ? std::optional(seconds) : std::nullopt;
}

std::string reloading_text() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return fmt::format("RELOADING=1\nMONOTONIC_USEC={}",
                     int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000);
}

}  // namespace strata::apps
