// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/probe_run.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "checkpoint/safetensors.h"

extern char** environ;

namespace strata::golden {
namespace {

std::string whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs the command with stderr in a file; returns its exit code, 128 + signal when it was killed.
int run_command(const std::vector<std::string>& command, const std::string& stderr_path) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, stderr_path.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t pid = 0;
  const int fault = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (fault != 0) return 127;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

boost::json::value read_json(const std::string& path) {
  return boost::json::parse(whole_file(path));
}

std::vector<GoldenRow> read_goldens() {
  const std::string root = STRATA_SOURCE_DIR "/tests/golden/";
  std::vector<GoldenRow> goldens;
  const boost::json::value rows = read_json(root + "goldens.json");
  for (const auto& row : rows.as_array()) {
    const auto text = [&row](const char* key) { return std::string(row.at(key).as_string()); };
    GoldenRow golden{.name = text("name"),
                     .model = root + text("model"),
                     .adapters = {},
                     .request = root + text("request"),
                     .expected = root + text("expected"),
                     .noise = root + text("noise")};
    for (const auto& adapter : row.at("adapters").as_array()) {
      golden.adapters.push_back(root + std::string(adapter.as_string()));
    }
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

Tensors read_tensors(const std::string& path) {
  const SafetensorsFile file(path);
  Tensors tensors;
  for (const TensorInfo& info : file.tensors()) {
    if (info.integer_bytes() > 0) continue;  // tables, which no test compares as values
    Tensor& tensor = tensors[info.name];
    tensor.dims = info.dims;
    int64_t count = 1;
    for (int64_t dim : info.dims) count *= dim;
    tensor.values.resize(static_cast<size_t>(count));
    file.read_f32(info, 0, count, tensor.values.data());
  }
  return tensors;
}

Tensors by_stacked_expert(const Tensors& tensors) {
  Tensors out;
  for (const auto& [name, tensor] : tensors) {
    const bool both = name.ends_with(".experts.gate_up_proj");
    if (tensor.dims.size() != 3 || (!both && !name.ends_with(".experts.down_proj"))) {
      out[name] = tensor;
      continue;
    }
    const std::string head = name.substr(0, name.rfind('.') + 1);
    const int64_t count = both ? 2 : 1, rows = tensor.dims[1] / count;
    auto from = tensor.values.begin();
    for (int64_t i = 0; i < tensor.dims[0] * count; ++i) {
      const auto end = from + rows * tensor.dims[2];
      const char* projection = !both ? "down" : i % 2 == 0 ? "gate" : "up";
      out[head + std::to_string(i / count) + "." + projection + "_proj.weight"] = {
          .dims = {rows, tensor.dims[2]}, .values = {from, end}};
      from = end;
    }
  }
  return out;
}

Tensors by_expert(const Tensors& tensors) {
  Tensors out;
  for (const auto& [name, tensor] : tensors) {
    constexpr std::string_view kExperts = ".experts.";
    const size_t at = name.find(kExperts);
    const std::string head = at == std::string::npos ? "" : name.substr(0, at + kExperts.size());
    const std::string part = name.substr(head.size());
    const bool alternates = !head.ends_with(".feed_forward.experts.");  // Llama 4's are halves
    const bool both = part.starts_with("gate_up_proj");
    const bool is_packed = !head.empty() &&
                           (!alternates || tensors.contains(head + "gate_up_proj_bias")) &&
                           (both || part == "down_proj" || part == "down_proj_bias");
    if (!is_packed) {
      out[name] = tensor;
      continue;
    }
    // [E, K, N], N the outputs of one projection or of two in turn; of biases K is 1.
    const bool is_bias = part.ends_with("_bias");
    const int64_t inputs = is_bias ? 1 : tensor.dims[1];
    const int64_t width = tensor.dims.back(), count = both ? 2 : 1;
    for (int64_t i = 0; i < tensor.dims[0] * count; ++i) {
      Tensor piece{.dims = {width / count}, .values = {}};
      if (!is_bias) piece.dims.push_back(inputs);
      for (int64_t n = 0; n < width / count; ++n) {
        const int64_t column = alternates ? n * count + i % count : i % count * width / count + n;
        for (int64_t k = 0; k < inputs; ++k) {
          const int64_t from = (i / count * inputs + k) * width + column;
          piece.values.push_back(tensor.values[static_cast<size_t>(from)]);
        }
      }
      const char* projection = !both ? "down" : i % 2 == 0 ? "gate" : "up";
      out[head + std::to_string(i / count) + "." + projection + "_proj." +
          (is_bias ? "bias" : "weight")] = std::move(piece);
    }
  }
  return out;
}

std::string temporary_path(const std::string& name) {
  return testing::TempDir() + "strata_golden_" + std::to_string(getpid()) + "_" + name;
}

// Another program may be put in its place: one that runs on protected memory.
std::string program() {
  const char* other = std::getenv("STRATA_TEST_PROGRAM");
  return other == nullptr ? STRATA_BINARY : other;
}

ProbeResult run_probe(const Probe& probe) {
  const std::string out = temporary_path("out.safetensors");
  const std::string errors = temporary_path("stderr");
  std::filesystem::remove(out);
  std::vector<std::string> command = {program(),   "probe",       "--model", probe.model,
                                      "--request", probe.request, "--out",   out};
  for (const std::string& adapter : probe.adapters) {
    command.insert(command.end(), {"--adapter", adapter});
  }
  command.insert(command.end(), probe.options.begin(), probe.options.end());
  // One thread where nobody asks for more: tests run side by side, and teams that share cores wait
  // for each other.
  const char* threads = std::getenv("STRATA_TEST_THREADS");
  const bool are_given = std::ranges::find(probe.options, "--threads") != probe.options.end();
  if (threads != nullptr || !are_given) {
    command.insert(command.end(), {"--threads", threads == nullptr ? "1" : threads});
  }
  ProbeResult result;
  result.exit_code = run_command(command, errors);
  result.message = whole_file(errors);
  if (result.exit_code == 0) result.tensors = read_tensors(out);
  std::filesystem::remove(out);
  std::filesystem::remove(errors);
  return result;
}

bool forced_path_exists() {
  const char* path = std::getenv("STRATA_CPU_PATH");
  if (path == nullptr || std::strcmp(path, "avx2") != 0) return true;
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

}  // namespace strata::golden
