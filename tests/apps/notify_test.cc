// SPDX-License-Identifier: Apache-2.0
// What a service manager is told, by a socket of our own in its place.
#include "apps/serve/notify.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>

namespace strata::apps {
namespace {

// A manager's socket: a file's, or with '@' one without a file.
class Manager {
 public:
  explicit Manager(const std::string& name) : socket_(::socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un where = {};
    where.sun_family = AF_UNIX;
    name.copy(where.sun_path, sizeof where.sun_path - 1);
    if (name[0] == '@') where.sun_path[0] = '\0';
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&where),
                     static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())),
              0);
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }
  ~Manager() {
    ::unsetenv("NOTIFY_SOCKET");
    ::close(socket_);
  }
  [[nodiscard]] std::string heard() const {
    char text[256];
    const ssize_t count = ::recv(socket_, text, sizeof text, MSG_DONTWAIT);
    return count < 0 ? "" : std::string(text, static_cast<size_t>(count));
  }

 private:
  int socket_;
};

TEST(Notify, TellsTheSocketThatTheVariableNames) {
  notify_manager("READY=1");  // nobody asked
  const std::string number = std::to_string(::getpid());
  for (const std::string& name :
       {testing::TempDir() + "/strata_notify." + number, "@strata_notify." + number}) {
    {
      const Manager manager(name);
      notify_manager("READY=1");
      EXPECT_EQ(manager.heard(), "READY=1") << name;
      notify_manager(reloading_text());
      EXPECT_EQ(manager.heard().substr(0, 27), "RELOADING=1\nMONOTONIC_USEC=");
      for (int i = 0; i < 10'000; ++i) notify_manager("WATCHDOG=1");  // nobody reads: no wait
    }
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    notify_manager("READY=1");  // it has gone
    ::unlink(name.c_str());
    ::unsetenv("NOTIFY_SOCKET");
  }
}

TEST(Notify, TheWatchdogIsForOneProcess) {
  EXPECT_FALSE(watchdog_seconds().has_value());
  ::setenv("WATCHDOG_USEC", "30000000", 1);
  EXPECT_EQ(watchdog_seconds(), 30.0);
  ::setenv("WATCHDOG_PID", "1", 1);
  EXPECT_FALSE(watchdog_seconds().has_value());
  ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
  EXPECT_EQ(watchdog_seconds(), 30.0);
  ::setenv("WATCHDOG_USEC", "rubbish", 1);
  EXPECT_FALSE(watchdog_seconds().has_value());
  ::unsetenv("WATCHDOG_USEC");
  ::unsetenv("WATCHDOG_PID");
}

}  // namespace
}  // namespace strata::apps
