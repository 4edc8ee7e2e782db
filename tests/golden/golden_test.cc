// SPDX-License-Identifier: Apache-2.0
// Parity with transformers and PEFT: every golden in f32 and in bf16, in bf16 the layers of a model
// together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>

#include "tests/golden/compare.h"
#include "tests/golden/probe_run.h"

namespace strata::golden {
namespace {

// Few tokens reach one expert, so that rounding's share in its gradient is small or large by luck:
// in bf16 the experts of a layer are compared as one tensor, under a name with * for the expert.
Tensors join_experts(const Tensors& tensors) {
  static const std::regex expert("\\.experts\\.[0-9]+\\.");
  Tensors joined;
  for (const auto& [name, tensor] : tensors) {
    Tensor& whole = joined[std::regex_replace(name, expert, ".experts.*.")];
    const int64_t count = whole.values.empty() ? 0 : whole.dims[0];
    whole.values.insert(whole.values.end(), tensor.values.begin(), tensor.values.end());
    if (!std::regex_search(name, expert)) {
      whole.dims = tensor.dims;
      continue;
    }
    whole.dims = {count + 1};
    whole.dims.insert(whole.dims.end(), tensor.dims.begin(), tensor.dims.end());
  }
  return joined;
}

// Of one tensor, or of the tensors that the layers of a model have in common.
struct Errors {
  double ours = 0;     // squares
  double allowed = 0;  // likewise
};

// In bf16 the noise of one small tensor is one draw of a random thing: where ours has the same
// distribution as transformers', the ratio of two such draws still passes 2 in about one tensor of
// a hundred. The bar of 2 is meant for the distribution, so tensors that differ by the layer alone
// are compared together, by the sums of their squared errors.
std::string pooled_name(const std::string& name) {
  static const std::regex layer("\\.layers\\.[0-9]+\\.");
  return std::regex_replace(name, layer, ".layers.*.");
}

void expect_close(const Tensors& got, const Tensors& want, const boost::json::value& noise,
                  bool bf16) {
  for (const auto& [name, tensor] : got) EXPECT_TRUE(want.contains(name)) << name << " unexpected";
  std::map<std::string, Errors> pools;
  for (const auto& [name, tensor] : want) {
    const auto found = got.find(name);
    if (found == got.end()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    if (bf16 && is_f32_only(name)) continue;
    if (found->second.dims != tensor.dims) {
      ADD_FAILURE() << name << " shape " << testing::PrintToString(found->second.dims)
                    << ", wanted " << testing::PrintToString(tensor.dims);
      continue;
    }
    const double limit = limit_of(name, noise, bf16);
    const double error = relative_l2(found->second, tensor);
    const double size = std::pow(norm(tensor.values, nullptr), 2);
    // Zeros and what is exact have no noise to be pooled.
    if (!bf16 || size == 0 || limit == 0 || std::isinf(limit)) {
      EXPECT_LE(error, limit) << name;
      continue;
    }
    Errors& pool = pools[pooled_name(name)];
    pool.ours += error * error * size;
    pool.allowed += limit * limit * size;
  }
  for (const auto& [name, pool] : pools) {
    EXPECT_LE(std::sqrt(pool.ours), std::sqrt(pool.allowed)) << name;
  }
}

class Golden : public testing::TestWithParam<GoldenRow> {
 protected:
  void compare(const char* dtype) {
    if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
    const GoldenRow& row = GetParam();
    const ProbeResult result = run_probe({.model = row.model,
                                          .adapters = row.adapters,
                                          .request = row.request,
                                          .options = {"--dtype", dtype}});
    ASSERT_EQ(result.exit_code, 0) << result.message;
    const boost::json::value noise = read_json(row.noise);
    const Tensors want = read_tensors(row.expected);
    if (std::string(dtype) == "f32") return expect_close(result.tensors, want, noise, false);
    expect_close(join_experts(result.tensors), join_experts(want), noise, true);
  }
};

TEST_P(Golden, F32) { compare("f32"); }
TEST_P(Golden, Bf16) { compare("bf16"); }

INSTANTIATE_TEST_SUITE_P(All, Golden, testing::ValuesIn(read_goldens()), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

// The comparison itself: an error just past the limit, a lost name and a NaN must each fail.
TEST(GoldenCompare, FailsWhenItShould) {
  const Tensor want{.dims = {2}, .values = {3, 4}};
  EXPECT_EQ(relative_l2(want, want), 0);
  EXPECT_GT(relative_l2({.dims = {2}, .values = {3, 4.00005f}}, want), 2e-6);
  const Tensor broken{.dims = {2}, .values = {3, std::numeric_limits<float>::quiet_NaN()}};
  EXPECT_FALSE(relative_l2(broken, want) <= 1e30);
  const Tensor zero{.dims = {2}, .values = {0, 0}};
  EXPECT_EQ(relative_l2(zero, zero), 0);
  EXPECT_FALSE(relative_l2({.dims = {2}, .values = {0, 1e-30f}}, zero) <= 1e30);
  EXPECT_FALSE(relative_l2(broken, zero) <= 1e30);
}

}  // namespace
}  // namespace strata::golden
