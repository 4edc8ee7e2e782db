// SPDX-License-Identifier: Apache-2.0
// The program itself, in a process of its own: run to its end with a text as stdin, or at a
// terminal (a pty) that is typed at.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/base/temp_dir.h"

namespace strata::apps {

using strata::testing::read_bytes;
using strata::testing::TempDir;
using Words = std::vector<std::string>;

// What a process finds: a folder to run in, and variables on top of the ones that there are.
struct Surroundings {
  Surroundings() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): NAME=VALUE, mostly all that is said
  Surroundings(const Words& settings) {
    for (const std::string& setting : settings) {
      const size_t end = setting.find('=');
      variables[setting.substr(0, end)] = setting.substr(end + 1);
    }
  }

  std::string folder = {};
  std::map<std::string, std::string> variables = {};  // an empty text: not set
};

// Another program may be put in its place: one on another backend.
inline std::string program() {
  const char* other = std::getenv("STRATA_TEST_PROGRAM");
  return other == nullptr ? STRATA_BINARY : other;
}

// Replaces this process by the program.
[[noreturn]] inline void become_program(const Words& args, const Surroundings& around) {
  if (!around.folder.empty() && ::chdir(around.folder.c_str()) != 0) ::_exit(126);
  for (const auto& [name, value] : around.variables) {
    if (value.empty()) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  std::string name = program();
  std::vector<char*> argv = {name.data()};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  ::execv(name.c_str(), argv.data());
  ::_exit(127);
}

// As a shell has it: 128 + the signal where one killed the process.
inline int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct Ran {
  int code = -1;
  std::string out, err;
};

// A process with its output in files. It is killed where nobody waited for it.
class Process {
 public:
  explicit Process(const Words& args, const std::string& input = "",
                   const Surroundings& around = {}) {
    std::ofstream(dir_.file("in")) << input;
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::dup2(::open(dir_.file("in").c_str(), O_RDONLY), STDIN_FILENO);
    ::dup2(::open(dir_.file("out").c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    ::dup2(::open(dir_.file("err").c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    become_program(args, around);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  // Nothing once it has ended: 0 would be the test's own group.
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }
  [[nodiscard]] std::string out() const { return text_of("out"); }
  [[nodiscard]] std::string err() const { return text_of("err"); }
  // Whether its output or its errors held `text` within a minute, and while it ran.
  [[nodiscard]] bool await(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (std::chrono::steady_clock::now() < end) {
      const bool ended = ::waitpid(pid_, &status_, WNOHANG) == pid_;
      if (ended) pid_ = 0;
      if ((out() + err()).find(text) != std::string::npos) return true;
      if (ended) return false;
      ::usleep(2000);
    }
    return false;
  }
  [[nodiscard]] Ran wait() {
    if (pid_ > 0) ::waitpid(pid_, &status_, 0);
    pid_ = 0;
    return {.code = exit_code_of(status_), .out = out(), .err = err()};
  }

 private:
  [[nodiscard]] std::string text_of(const char* name) const {
    const std::string path = dir_.file(name);
    return std::filesystem::exists(path) ? read_bytes(path) : "";
  }

  const TempDir dir_;
  pid_t pid_ = 0;
  int status_ = 0;
};

inline Ran run_program(const Words& args, const std::string& input = "",
                       const Surroundings& around = {}) {
  return Process(args, input, around).wait();
}

// The program at a terminal of 24 lines of 200 columns. What it prints is read by expect() alone.
class Terminal {
 public:
  explicit Terminal(const Words& args, const Surroundings& around = {}) {
    const winsize size{.ws_row = 24, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = ::forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    ::signal(SIGHUP, SIG_DFL);  // also where the tests run behind nohup
    ::setenv("TERM", "xterm", 1);
    become_program(args, around);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    ::close(fd_);
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  // All at once, as keys or a paste would send it.
  void type(const std::string& keys) const {
    EXPECT_EQ(::write(fd_, keys.data(), keys.size()), std::ssize(keys));
  }
  // Reads until what was printed since the last hit holds `text`, for a minute at most; what was
  // printed up to its end, or a failure.
  std::string expect(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (true) {
      const size_t at = unread_.find(text);
      if (at != std::string::npos) {
        std::string before = unread_.substr(0, at + text.size());
        unread_.erase(0, at + text.size());
        return before;
      }
      if (std::chrono::steady_clock::now() >= end || !read_some()) break;
    }
    ADD_FAILURE() << "the terminal never showed '" << text << "' but\n" << unread_;
    return "";
  }
  // Reads to the end; the exit code. A program that does not end within a minute is a failure.
  int wait() {
    int status = 0;
    for (int tenths = 0; tenths < 600; ++tenths) {
      pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, 100) > 0 && !read_some()) ::usleep(100'000);
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        while (read_some()) {
        }
        pid_ = 0;
        return exit_code_of(status);
      }
    }
    ADD_FAILURE() << "the program never ended; the terminal showed\n" << unread_;
    return -1;
  }
  // Whether the terminal takes lines, as a shell leaves it, and not keys.
  [[nodiscard]] bool takes_lines() const {
    termios modes;
    EXPECT_EQ(::tcgetattr(fd_, &modes), 0);
    return (modes.c_lflag & ICANON) != 0 && (modes.c_lflag & ECHO) != 0;
  }

  [[nodiscard]] const std::string& unread() const { return unread_; }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  // Waits for more; false at the end, and after a minute without any.
  bool read_some() {
    pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 60'000) <= 0) return false;
    char bytes[4096];
    const ssize_t count = ::read(fd_, bytes, sizeof(bytes));
    if (count <= 0) return false;
    unread_.append(bytes, static_cast<size_t>(count));
    return true;
  }

  int fd_ = -1;
  pid_t pid_ = 0;
  std::string unread_;
};

}  // namespace strata::apps
