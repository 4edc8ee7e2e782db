// SPDX-License-Identifier: Apache-2.0
// The parameters of grouped-query attention (model/blocks/gqa.h) as rows. Any thread.
#pragma once
#include <cstdint>

#include "model/blocks/gqa.h"
#include "model/weights/param_rows.h"

namespace strata::model {

struct GqaRows {
  enum Key : uint8_t {
    kQ,
    kK,
    kV,
    kO,
    kQBias,
    kKBias,
    kVBias,
    kOBias,
    kQNorm,
    kKNorm,
    kSinks,
    kQkv
  };
  // Those of a model of width d.
  static void add(const GqaConfig& c, int64_t d, ParamRows& rows);
};

}  // namespace strata::model
