// SPDX-License-Identifier: Apache-2.0
// Ctrl-C of commands that run long: generate ends its text, plan ends at once; both with the exit
// code of a shell.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace strata::apps {
namespace {

struct Ended {
  int code = -1;  // -1: by the signal itself
  std::string out;
};

// Whether the process has a handler of this signal yet, or is over.
bool handles(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  const std::string key = "SigCgt:\t";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("State:\tZ")) return true;
    if (!line.starts_with(key)) continue;
    return ((std::stoull(line.substr(key.size()), nullptr, 16) >> (signal - 1)) & 1) != 0;
  }
  return false;
}

// Runs the program, and sends it the signal once it would note it and has written `bytes`.
Ended run_and_stop(std::vector<std::string> args, int signal, size_t bytes) {
  args.insert(args.begin(), STRATA_BINARY);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::signal(SIGINT, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
    ::dup2(pipe[1], STDOUT_FILENO);
    ::close(pipe[0]);
    ::close(pipe[1]);
    ::execv(STRATA_BINARY, argv.data());
    ::_exit(127);
  }
  ::close(pipe[1]);
  Ended ended;
  char buffer[4096];
  const auto read_some = [&] {
    const ssize_t got = ::read(pipe[0], buffer, sizeof(buffer));
    if (got > 0) ended.out.append(buffer, static_cast<size_t>(got));
    return got > 0;
  };
  for (int i = 0; i < 60'000 && !handles(pid, signal); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  while (ended.out.size() < bytes && read_some()) {
  }
  ::kill(pid, signal);
  while (read_some()) {
  }
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  return ended;
}

TEST(StoppedCommands, GenerateEndsItsText) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Ended ended = run_and_stop(
        {"generate", "--model", std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3", "--prompt",
         "Once", "--max-tokens", "8000", "--temperature", "5", "--seed", "1", "--threads", "2"},
        signal, 20);
    EXPECT_EQ(ended.code, 128 + signal);
    EXPECT_GE(ended.out.size(), 20u);
    EXPECT_EQ(ended.out.back(), '\n');
  }
}

TEST(StoppedCommands, PlanEndsAtOnce) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string svg = testing::TempDir() + "strata_stopped_plan.svg";
    const Ended ended = run_and_stop(
        {"plan", "--model", "llama2-7b", "--tokens", "4x4096", "--svg", svg}, signal, 0);
    EXPECT_EQ(ended.code, 128 + signal);
    EXPECT_EQ(ended.out, "");
  }
}

}  // namespace
}  // namespace strata::apps
