// SPDX-License-Identifier: Apache-2.0
// Goldens, and `strata probe` run as a user runs it: a process, files in, one file out.
// A golden is a row of goldens.json, which tools/golden/make_golden.py writes.
#pragma once
#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace strata::golden {

struct Tensor {
  std::vector<int64_t> dims;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

struct GoldenRow {
  std::string name;  // "llama2/main"
  std::string model;
  std::vector<std::string> adapters;
  std::string request, expected, noise;  // paths
};

// For the lines that name a failure.
inline void PrintTo(const GoldenRow& row, std::ostream* out) { *out << row.name; }

struct Probe {
  std::string model;
  std::vector<std::string> adapters = {};
  std::string request;                    // path
  std::vector<std::string> options = {};  // "--dtype", "bf16", ...
};

struct ProbeResult {
  int exit_code = 0;
  std::string message;  // stderr
  Tensors tensors;      // empty unless exit_code is 0
};

std::vector<GoldenRow> read_goldens();
boost::json::value read_json(const std::string& path);
// Every tensor of a safetensors file, widened to f32.
Tensors read_tensors(const std::string& path);
// With what gpt-oss' files have of all experts as a matrix or a bias of each, as probe names them.
Tensors by_expert(const Tensors& tensors);
// What is named of all experts of a layer, gate_up_proj [E, 2 F, D] and down_proj [E, D, F], as
// what single experts have; all else as it is.
Tensors by_stacked_expert(const Tensors& tensors);
ProbeResult run_probe(const Probe& probe);
// A path for a file of this test process.
std::string temporary_path(const std::string& name);
// Whether the CPU path that STRATA_CPU_PATH forces, if any, exists on this machine.
bool forced_path_exists();

}  // namespace strata::golden
