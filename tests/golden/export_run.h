// SPDX-License-Identifier: Apache-2.0
// What the tests of models that are taken out share: running the program, and logits.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/safetensors.h"
#include "tests/base/temp_dir.h"
#include "tests/golden/probe_run.h"

namespace strata::golden {

using testing::TempDir;

inline const std::string kRoot = STRATA_SOURCE_DIR "/tests/golden/";

// Runs the program; its exit code, and what it printed in `out`.
inline int run_program(const std::string& arguments, const TempDir& folder,
                       std::string* out = nullptr) {
  const std::string printed = folder.file("printed.txt");
  const int status =
      std::system(fmt::format("'{}' {} > '{}' 2>&1", STRATA_BINARY, arguments, printed).c_str());
  if (out != nullptr) *out = read_file(printed, 1 << 20);
  return WEXITSTATUS(status);
}

inline std::vector<GoldenRow> rows_of(const char* request, bool with_adapters) {
  std::vector<GoldenRow> rows;
  for (const GoldenRow& row : read_goldens()) {
    const bool fits = row.name.substr(row.name.find('/') + 1) == request;
    if (fits && (!with_adapters || !row.adapters.empty())) rows.push_back(row);
  }
  return rows;
}

inline std::string name_of(const ::testing::TestParamInfo<GoldenRow>& info) {
  std::string name = info.param.name.substr(0, info.param.name.find('/'));
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

// The golden's tokens as one sequence, with an adapter or without one (0): logits.
inline std::string request_of(const GoldenRow& row, size_t adapter, const TempDir& folder) {
  const boost::json::value golden = read_json(row.request);
  boost::json::object sequence;
  sequence["tokens"] = golden.at("sequences").at(0).at("tokens");
  if (adapter > 0) sequence["adapter"] = adapter;
  boost::json::array sequences;
  sequences.emplace_back(std::move(sequence));
  boost::json::object request;
  request["sequences"] = std::move(sequences);
  request["want"] = boost::json::array{"logits"};
  const std::string path = folder.file(fmt::format("request{}.json", adapter));
  std::ofstream(path) << boost::json::serialize(request);
  return path;
}

struct Difference {
  double largest = 0, of = 0;          // the largest difference, and value
  double squares = 0, squares_of = 0;  // sums of both
  double count = 0;
  [[nodiscard]] double rms() const { return std::sqrt(squares / count); }
  [[nodiscard]] double rms_of() const { return std::sqrt(squares_of / count); }
};
inline Difference difference(const Tensors& a, const Tensors& b) {
  Difference out;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.values.size() != tensor.values.size()) {
      ADD_FAILURE() << name;
      continue;
    }
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      const auto value = static_cast<double>(tensor.values[i]);
      const double error = value - static_cast<double>(found->second.values[i]);
      out.of = std::max(out.of, std::fabs(value));
      out.largest = std::max(out.largest, std::fabs(error));
      out.squares += error * error;
      out.squares_of += value * value;
      out.count += 1;
    }
  }
  return out;
}

inline Tensors logits_of(const std::string& model, const std::vector<std::string>& adapters,
                         const std::string& request) {
  const ProbeResult result = run_probe(
      {.model = model, .adapters = adapters, .request = request, .options = {"--dtype", "f32"}});
  EXPECT_EQ(result.exit_code, 0) << result.message;
  return result.tensors;
}

}  // namespace strata::golden
