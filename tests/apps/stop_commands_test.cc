// SPDX-License-Identifier: Apache-2.0
// Ctrl-C of commands that run long: generate ends its text, plan ends at once, backup, restore and
// check remove what they were making; all with the exit code of a shell.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/tar.h"
#include "server/store/checkpoints/registry.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;
using strata::testing::read_bytes;
using strata::testing::TempDir;
using strata::testing::write_bytes;

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

// Runs the program, and sends it the signal once it would note it, has written `bytes` and is
// ready.
Ended run_and_stop(
    std::vector<std::string> args, int signal, size_t bytes,
    const std::function<bool()>& is_ready = [] { return true; }) {
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
    ::signal(SIGHUP, SIG_DFL);
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
  const int noted = signal == SIGKILL ? SIGTERM : signal;
  for (int i = 0; i < 60'000 && !(handles(pid, noted) && is_ready()); ++i) {
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
    const std::string svg = ::testing::TempDir() + "strata_stopped_plan.svg";
    const Ended ended = run_and_stop(
        {"plan", "--model", "llama2-7b", "--tokens", "4x4096", "--svg", svg}, signal, 0);
    EXPECT_EQ(ended.code, 128 + signal);
    EXPECT_EQ(ended.out, "");
  }
}

constexpr uintmax_t kLong = uintmax_t{3} << 30;  // of a sparse file: some seconds to copy

// A data directory with a checkpoint that takes long to copy.
void make_data(const std::string& path) {
  server::DataDir data(path);
  server::StateStore store(server::open_sqlite(data.database()), 1000);
  server::CheckpointRegistry registry(data, store, {});
  const std::string dir = registry.begin_save();
  write_bytes(dir + "/adapter_config.json", "{}");
  server::CheckpointSave save;
  save.path = {"s:train:0", server::CheckpointKind::kWeights, "a"};
  save.tenant = "alice";
  save.base_model = "base";
  save.lora.rank = 8;
  const server::CheckpointRow row = registry.finish_save(dir, save, 1000);
  const std::string large = registry.folder(row) + "/large";
  write_bytes(large, "");
  fs::resize_file(large, kLong);
}

// A backup of one file that takes long to unpack.
void make_archive(const std::string& path) {
  {
    TarWriter writer(path);
    writer.add("checkpoints/alice/r/weights/" + std::string(32, 'a') + "/large", "", 0);
    writer.commit();
  }
  std::string header = read_bytes(path).substr(0, 512);
  header.replace(124, 11, fmt::format("{:011o}", kLong));
  int sum = 0;
  for (size_t i = 0; i < header.size(); ++i)
    sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(header[i]);
  header.replace(148, 6, fmt::format("{:06o}", sum));
  write_bytes(path, header);
  fs::resize_file(path, 512 + kLong + 1024);
}

// Of a name with `part` in it: a folder that something is in.
bool has_begun(const TempDir& dir, const std::string& part) {
  const std::vector<std::string> names = dir.names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    std::error_code fault;
    return name.find(part) != std::string::npos && !fs::is_empty(dir.file(name), fault);
  });
}

TEST(StoppedCommands, BackupRestoreAndCheckRemoveWhatTheyWereMaking) {
  const TempDir dir;
  make_data(dir.file("data"));
  make_archive(dir.file("a.tar"));
  const std::vector<std::string> before = dir.names();
  ASSERT_EQ(::setenv("TMPDIR", dir.path().c_str(), 1), 0);
  struct Case {
    std::vector<std::string> args;
    std::string makes;
  };
  for (const Case& c :
       {Case{{"backup", "--data", dir.file("data"), "--out", dir.file("b.tar")}, "b.tar"},
        Case{{"restore", "--in", dir.file("a.tar"), "--data", dir.file("r")}, "r.restoring-"},
        Case{{"check", "--in", dir.file("a.tar")}, "strata-check-"}}) {
    const auto has_made = [&] { return has_begun(dir, c.makes); };
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      EXPECT_EQ(run_and_stop(c.args, signal, 0, has_made).code, 128 + signal) << c.makes;
      EXPECT_EQ(dir.names(), before) << c.makes;
    }
    EXPECT_EQ(run_and_stop(c.args, SIGKILL, 0, has_made).code, -1);
    EXPECT_NE(dir.names(), before) << "nobody can remove it at once";
    EXPECT_EQ(run_and_stop(c.args, SIGTERM, 0).code, 128 + SIGTERM);
    EXPECT_EQ(dir.names(), before) << "the next run did, of what the killed one left";
  }
  ::unsetenv("TMPDIR");
}

}  // namespace
}  // namespace strata::apps
