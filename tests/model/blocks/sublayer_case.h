// SPDX-License-Identifier: Apache-2.0
// One block or one connector by itself: a model of one layer that has it, with parameters drawn at
// random, against a reference. Each file beside this one instantiates SublayerAlone, under the name
// of the row that it tests, with configs of every kind that the row knows; its three tests are in
// sublayer_test.cc, and another there fails where a row has none.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "model/connectors/connector.h"
#include "model/families/rope_config.h"
#include "tests/model/blocks/reference.h"

namespace strata::testing {

constexpr int64_t kWidth = 12;  // of the model
constexpr int64_t kVocab = 11;
constexpr double kTheta = 100.0;  // of ropes: all pairs turn within a few positions

struct SublayerCase {
  std::string name;
  model::Block block;
  std::optional<model::Connector> connector = {};  // where that is what is tested
  Reference reference;
  std::vector<int64_t> rope_dims = {};           // ModelConfig::ropes, of kTheta
  std::vector<model::RopeSpec> more_ropes = {};  // behind those
  int64_t streams = 1;
  bool adds = true;               // the block has an epilogue that adds a residual
  int64_t layer_input_width = 0;  // of layer_input(), which the block reads
};

// An input of the layer besides its state: number i of a token.
inline double layer_input(int32_t token, size_t i) {
  return std::sin(1.7 * token + 0.6 * static_cast<double>(i));
}

class SublayerAlone : public ::testing::TestWithParam<SublayerCase> {};

inline void PrintTo(const SublayerCase& tested, std::ostream* out) { *out << tested.name; }

inline std::string case_name(const ::testing::TestParamInfo<SublayerCase>& info) {
  return info.param.name;
}

}  // namespace strata::testing
