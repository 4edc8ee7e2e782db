// SPDX-License-Identifier: Apache-2.0
#include "apps/pull.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "data/parquet.h"
#include "setup/hub_cache.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;

int wait_for_exit_code(pid_t child, const std::string& program) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      throw Error(ErrorCode::kIo,
                  fmt::format("pull: waiting for {}: {}", program, std::strerror(errno)));
    }
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs a program of PATH on this terminal; no shell reads the words. With `out` its stdout is that
// file. Its exit code; -1 where there is none of the name.
int run_on_terminal(std::vector<std::string> words, const std::string& out = "") {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (!out.empty()) {
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0666);
  }
  pid_t child = 0;
  const int fault =
      ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (fault == ENOENT) return -1;
  if (fault != 0) {
    throw Error(ErrorCode::kIo, fmt::format("pull: {}: {}", words[0], std::strerror(fault)));
  }
  return wait_for_exit_code(child, words[0]);
}

void check_is_hub_name(const std::string& name) {
  if (is_hub_name(name)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("pull: got '{}', want ORG/NAME of the Hugging Face hub, like "
                          "Qwen/Qwen3-0.6B",
                          name));
}

void download(const PullOptions& o) {
  std::vector<std::string> words = {"hf", "download"};
  if (o.dataset) words.insert(words.end(), {"--repo-type", "dataset"});
  words.push_back(o.name);
  const int code = run_on_terminal(words);
  if (code == 0) return;
  if (code < 0) {
    throw Error(
        ErrorCode::kNotFound,
        fmt::format("pull: there is no program hf on PATH, which downloads from the Hugging "
                    "Face hub; to install it: pipx install huggingface_hub (Debian and Ubuntu: "
                    "apt install pipx first; there pip install huggingface_hub works in a virtual "
                    "environment alone); then again: strata pull {}{}",
                    o.dataset ? "--dataset " : "", o.name));
  }
  throw Error(ErrorCode::kIo, fmt::format("pull: {} ended with exit code {}; what it wrote above "
                                          "says why",
                                          fmt::join(words, " "), code));
}

std::string find_downloaded(const PullOptions& o) {
  const HubKind kind = o.dataset ? HubKind::kDataset : HubKind::kModel;
  if (const auto dir = find_in_hub_cache(o.name, kind)) return *dir;
  throw Error(ErrorCode::kNotFound,
              fmt::format("pull: hf download {} ended well, and yet its {} is in no cache of the "
                          "hub (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub)",
                          o.name, o.dataset ? "data set" : "model"));
}

std::vector<fs::path> find_parquet(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code fault;
  for (fs::recursive_directory_iterator it(folder, fault), end; !fault && it != end;
       it.increment(fault)) {
    if (it->path().extension() == ".parquet") files.push_back(it->path());
  }
  std::ranges::sort(files);
  return files;
}

// data/train-0.parquet becomes data-train-0.jsonl: files of several folders stay apart.
std::string jsonl_name(const fs::path& file, const std::string& folder) {
  std::string name = data::jsonl_name_of_parquet(file.lexically_relative(folder).string());
  std::ranges::replace(name, '/', '-');
  return name;
}

void check_has_pyarrow(const fs::path& file) {
  if (run_on_terminal({"python3", "-c", "import pyarrow.parquet"}) == 0) return;
  throw Error(ErrorCode::kNotFound,
              fmt::format("pull: the data set is in the cache, and its files of Parquet want a "
                          "python3 with pyarrow (pip install pyarrow, in a virtual environment); "
                          "then again, or by hand for each file:\n  {}",
                          data::parquet_command(file.string())));
}

// A file that is there already stays as it is.
std::string write_jsonl(const fs::path& file, const std::string& to) {
  if (file_exists(to)) return to;
  const std::string part = to + ".part";
  const int code =
      run_on_terminal({"python3", "-c", std::string(data::kParquetProgram), file.string()}, part);
  if (code != 0) {
    fs::remove(part);
    throw Error(ErrorCode::kIo, fmt::format("pull: {}: python3 ended with exit code {}; what it "
                                            "wrote above says why",
                                            file.string(), code));
  }
  fs::rename(part, to);
  return to;
}

void make_jsonl(const PullOptions& o, const std::string& snapshot) {
  const std::vector<fs::path> files = find_parquet(snapshot);
  if (files.empty()) {
    fmt::print(stderr, "Look at it: strata data MODEL --data {}\n", o.name);
    return;
  }
  check_has_pyarrow(files.front());
  const std::string out = o.out.empty() ? o.name.substr(o.name.find('/') + 1) : o.out;
  make_folders(out);
  std::string last;
  for (const fs::path& file : files) {
    last = write_jsonl(file, fmt::format("{}/{}", out, jsonl_name(file, snapshot)));
    fmt::print(stderr, "{}\n", last);
  }
  fmt::print(stderr, "Look at it: strata data MODEL --data {}\n", last);
}

}  // namespace

int run_pull(const PullOptions& options) {
  check_is_hub_name(options.name);
  if (!options.out.empty() && !options.dataset) {
    throw Error(ErrorCode::kInvalidArgument,
                "pull: --out is of --dataset alone: models stay in "
                "the hub's cache");
  }
  download(options);
  const std::string folder = find_downloaded(options);
  fmt::print(stderr, "{} is in {}\n", options.name, folder);
  if (options.dataset) {
    make_jsonl(options, folder);
  } else {
    fmt::print(stderr, "Talk to it: strata chat {}\n", options.name);
  }
  return 0;
}

}  // namespace strata::apps
