// SPDX-License-Identifier: Apache-2.0
// Which matrices a base has in nf4 as it is loaded, of projections that files have as one too.
#include "model/weights/load_in_4bit.h"

#include <gtest/gtest.h>

#include "model/config.h"
#include "ops/cpu/cpu_backend.h"

namespace strata::model {
namespace {

TEST(LoadIn4Bit, PartsOfFusedProjectionsAreKeptInFewBits) {
  const ModelConfig config =
      parse_config(R"({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
                       "vocab_size": 100, "hidden_size": 128, "intermediate_size": 192,
                       "num_hidden_layers": 1, "num_attention_heads": 4,
                       "num_key_value_heads": 2})",
                   "dir/config.json", true)
          .config;
  const CpuBackend backend(choose_cpu_path(), 1);
  const ModelWeights weights(backend, config, DType::kBF16, nullptr, {},
                             forms_in_4bit(backend, config, "dir"));
  int64_t narrow = 0;
  for (const Parameter& parameter : weights.table()) {
    if (is_linear_of_layer(parameter)) {
      EXPECT_EQ(parameter.panel.form, NarrowForm::kNf4) << parameter.row->suffix;
      ++narrow;
    }
  }
  EXPECT_EQ(narrow, 7);  // q, k, v, o, gate, up and down
}

}  // namespace
}  // namespace strata::model
