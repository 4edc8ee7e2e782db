// SPDX-License-Identifier: Apache-2.0
// Models that nobody chose, and the edges of files that other programs write: what
// tools/golden/random_models.py drew, and the logprobs that transformers and PEFT give it in
// float64. The weights are made again from the seed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/golden/compare.h"
#include "tests/golden/generated_model.h"
#include "tests/golden/probe_run.h"

namespace strata::golden {
namespace {

struct RandomModel {
  std::string name;
  boost::json::object row;
};
void PrintTo(const RandomModel& model, std::ostream* out) { *out << model.name; }

std::vector<RandomModel> read_models(const char* file) {
  std::vector<RandomModel> models;
  const boost::json::value rows =
      read_json(std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + file);
  for (const boost::json::value& row : rows.as_array()) {
    models.push_back({row.at("name").as_string().c_str(), row.as_object()});
  }
  return models;
}

class GeneratedGolden : public testing::TestWithParam<RandomModel> {};

TEST_P(GeneratedGolden, F32) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  const boost::json::object& row = GetParam().row;
  const std::string folder = temporary_path("generated_" + GetParam().name);
  std::filesystem::remove_all(folder);
  const GeneratedModel files = write_generated(row, folder);
  const std::string request = folder + "/request.json";
  std::ofstream(request) << boost::json::serialize(boost::json::object{
      {"sequences", row.at("sequences")}, {"want", boost::json::array{"logprobs"}}});
  const ProbeResult result = run_probe({.model = files.model,
                                        .adapters = files.adapters,
                                        .request = request,
                                        .options = {"--dtype", "f32"}});
  ASSERT_EQ(result.exit_code, 0) << result.message;
  Tensor want;
  for (const boost::json::value& value : row.at("logprobs").as_array()) {
    want.values.push_back(value.to_number<float>());
  }
  want.dims = {static_cast<int64_t>(want.values.size())};
  const Tensor& got = result.tensors.at("logprobs");
  ASSERT_EQ(got.dims, want.dims);
  const boost::json::value noise = {{"logprobs", {{"f32", row.at("noise")}}}};
  EXPECT_LE(relative_l2(got, want), limit_of("logprobs", noise, /*bf16=*/false));
  std::filesystem::remove_all(folder);
}

std::string name_of(const testing::TestParamInfo<RandomModel>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Random, GeneratedGolden,
                         testing::ValuesIn(read_models("random_models.json")), name_of);
INSTANTIATE_TEST_SUITE_P(Edges, GeneratedGolden, testing::ValuesIn(read_models("edge_models.json")),
                         name_of);

}  // namespace
}  // namespace strata::golden
