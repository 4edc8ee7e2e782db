// SPDX-License-Identifier: Apache-2.0
// What a model's makers say of sampling from it: temperature, top_p, top_k, min_p and
// repetition_penalty of its generation_config.json, as vLLM takes them. A key that is absent or
// null says nothing.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/model_texts.h"

namespace strata::data {

struct SamplingDefaults {
  bool greedy = false;  // "do_sample": false, or a temperature of 0
  std::optional<double> temperature;
  std::optional<int64_t> top_k;  // 0: off, as -1 is in the file
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
};

// Which of them somebody named otherwise: these are not looked at, however the file has them.
struct NamedSampling {
  bool temperature = false;
  bool top_k = false;
  bool top_p = false;
  bool min_p = false;
  bool repetition_penalty = false;
};

// Nothing where the directory has no such file. A value out of its range is an Error that names
// file, key and the option that takes its place.
SamplingDefaults load_sampling_defaults(const ModelTexts& texts, const NamedSampling& named = {});

}  // namespace strata::data
