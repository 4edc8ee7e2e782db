// SPDX-License-Identifier: Apache-2.0
#include "tests/server/store/state/test_postgres.h"

#include <fcntl.h>
#include <grp.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace strata::testing {
namespace {

// Starts a program, as another user where we are root.
pid_t start(const std::vector<std::string>& command, const std::string& dir) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  if (::geteuid() == 0) {
    const passwd* user = ::getpwnam("postgres");
    if (user == nullptr) user = ::getpwnam("nobody");
    if (user == nullptr || ::setgroups(0, nullptr) != 0 || ::setgid(user->pw_gid) != 0 ||
        ::setuid(user->pw_uid) != 0) {
      ::_exit(126);
    }
  }
  const int log = ::open((dir + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(log, 1);
  ::dup2(log, 2);
  ::close(0);
  if (::chdir(dir.c_str()) != 0) ::_exit(126);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

void run_sql(const std::string& url, const char* statement) {
  PGconn* connection = PQconnectdb(url.c_str());
  PQsetNoticeProcessor(connection, [](void*, const char*) {}, nullptr);
  PGresult* result = PQexec(connection, statement);
  const std::string message = PQerrorMessage(connection);
  PQclear(result);
  PQfinish(connection);
  if (!message.empty()) throw std::runtime_error(message);
}

}  // namespace

TestPostgres* TestPostgres::shared() {
  static const std::unique_ptr<TestPostgres> instance = [] {
    const std::string binaries = "/usr/lib/postgresql/15/bin";
    return std::unique_ptr<TestPostgres>(
        std::filesystem::exists(binaries + "/initdb") ? new TestPostgres(binaries) : nullptr);
  }();
  return instance.get();
}

TestPostgres::TestPostgres(const std::string& binaries) {
  char name[] = "/tmp/strata-postgres-XXXXXX";
  dir_ = ::mkdtemp(name);
  if (::geteuid() == 0) {
    const passwd* user = ::getpwnam("postgres");
    if (user == nullptr) user = ::getpwnam("nobody");
    if (::chown(dir_.c_str(), user->pw_uid, user->pw_gid) != 0) throw std::runtime_error("chown");
  }
  const std::string data = dir_ + "/data";
  int status = 0;
  ::waitpid(start({binaries + "/initdb", "-D", data, "-U", "strata", "-A", "trust", "--no-sync",
                   "--no-instructions", "-E", "UTF8", "--locale=C"},
                  dir_),
            &status, 0);
  if (status != 0) throw std::runtime_error("initdb failed: " + dir_ + "/log");
  server_ = start({binaries + "/postgres", "-D", data, "-k", dir_, "-c", "listen_addresses=", "-c",
                   "fsync=off", "-c", "shared_buffers=16MB"},
                  dir_);
  url_ = "postgresql:///postgres?host=" + dir_ + "&user=strata";
  for (int attempt = 0; PQping(url_.c_str()) != PQPING_OK; ++attempt) {
    if (attempt == 300) throw std::runtime_error("postgres did not start: " + dir_ + "/log");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

TestPostgres::~TestPostgres() {
  ::kill(server_, SIGINT);
  ::waitpid(server_, nullptr, 0);
  std::filesystem::remove_all(dir_);
}

void TestPostgres::reset() { run_sql(url_, "DROP SCHEMA public CASCADE; CREATE SCHEMA public"); }

void TestPostgres::freeze(bool frozen) {
  std::vector<pid_t> processes = {server_};
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream stat(entry.path() / "stat");
    std::string pid, name, state, parent;
    if (stat >> pid >> name >> state >> parent && parent == std::to_string(server_))
      processes.push_back(std::stoi(pid));
  }
  for (const pid_t process : processes) ::kill(process, frozen ? SIGSTOP : SIGCONT);
}

void TestPostgres::drop_connections() {
  run_sql(url_,
          "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
          "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'");
}

}  // namespace strata::testing
