// SPDX-License-Identifier: Apache-2.0
// What `strata init` writes is what transformers saves of a new model of the same config: names and
// shapes. tools/golden/init_names.py wrote the lists, and can have transformers load the files.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/files.h"
#include "checkpoint/safetensors.h"
#include "tests/golden/probe_run.h"

namespace strata::golden {
namespace {

struct Listed {
  std::string name;
  boost::json::object row;
};
void PrintTo(const Listed& listed, std::ostream* out) { *out << listed.name; }

std::vector<Listed> read_lists() {
  std::vector<Listed> lists;
  const boost::json::value rows = read_json(STRATA_SOURCE_DIR "/tests/golden/init_names.json");
  for (const boost::json::value& row : rows.as_array()) {
    lists.push_back({row.at("name").as_string().c_str(), row.as_object()});
  }
  return lists;
}

class InitNames : public testing::TestWithParam<Listed> {
 protected:
  void SetUp() override {
    if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
    folder_ = temporary_path("init_names_" + GetParam().name);
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Runs init on the config; the folder that it wrote.
  std::string init(const std::string& options) {
    const std::string config = folder_ + "/config.json", out = folder_ + "/out";
    std::ofstream(config) << boost::json::serialize(GetParam().row.at("config"));
    const std::string command = std::string(STRATA_BINARY) + " init --config " + config +
                                " --out " + out + options + " >" + folder_ + "/log 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << read_file(folder_ + "/log", 1 << 20);
    return out;
  }

  std::string folder_;
};

TEST_P(InitNames, AreThoseOfTransformers) {
  std::set<std::string> want, got;
  for (const boost::json::value& tensor : GetParam().row.at("tensors").as_array()) {
    std::string shape;
    for (const boost::json::value& dim : tensor.as_array()[1].as_array()) {
      shape += (shape.empty() ? "" : ", ") + std::to_string(dim.as_int64());
    }
    want.insert(std::string(tensor.as_array()[0].as_string()) + " [" + shape + "]");
  }
  const std::string out = init("");
  const SafetensorsFile written(out + "/model.safetensors");
  for (const TensorInfo& tensor : written.tensors()) {
    got.insert(tensor.name + " " + tensor.shape_text());
  }
  EXPECT_EQ(got, want);
  // What it wrote is a model to Strata too.
  std::ofstream(folder_ + "/request.json")
      << R"({"sequences": [{"tokens": [1, 2, 3], "targets": [2, 3, 4]}], "want": ["loss"]})";
  const ProbeResult result = run_probe({.model = out, .request = folder_ + "/request.json"});
  EXPECT_EQ(result.exit_code, 0) << result.message;
}

INSTANTIATE_TEST_SUITE_P(Families, InitNames, testing::ValuesIn(read_lists()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace strata::golden
