// SPDX-License-Identifier: Apache-2.0
// The shapes that `strata bench` makes in memory, with random weights.
#pragma once
#include "model/config.h"

namespace strata::apps {

enum class BenchShape {
  kQwen3Dense,  // Qwen3-0.6B
  kQwen3Moe,    // four layers of Qwen3-30B-A3B, a vocabulary of 32,768
  kDeltaNet,    // Qwen3.5-0.8B
  kDeepseekV4,  // four layers of DeepSeek-V4-Flash with 16 experts, a vocabulary of 32,768
  kLatent,      // two layers with DeepSeek-V3's attention, a narrow dense MLP
  kGptOss,      // four layers of gpt-oss-20b, a vocabulary of 32,768
  // Four layers of Gemma 4 E4B, of which two read keys and values of the others, a vocabulary of
  // 32,768.
  kGemma4,
};

model::ModelConfig bench_config(BenchShape shape);

}  // namespace strata::apps
