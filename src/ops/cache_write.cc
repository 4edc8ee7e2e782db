// SPDX-License-Identifier: Apache-2.0
#include "ops/cache_write.h"

#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {

void cache_write(Backend& backend, TensorView x, std::span<const CacheSegment> runs) {
  for (const CacheSegment& run : runs) {
    CHECK(0 <= run.begin && run.begin <= run.end && run.end <= x.rows(), run.begin, run.end,
          x.rows());
    CHECK(run.to != nullptr || run.begin == run.end || backend.is_counting());
  }
  backend.call()->cache_write.run(backend, x, stage_list(backend, runs));
}

}  // namespace strata::ops
