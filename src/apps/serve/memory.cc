// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/memory.h"

#include "apps/setup/model_files.h"
#include "base/files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/source.h"

namespace strata::apps {

void check_weights_fit(std::span<const std::string> directories, int64_t budget,
                       model::KeepWeights keep) {
  int64_t bytes = 0;
  for (const std::string& dir : directories) {
    const auto source = find_weights(dir);
    if (source == nullptr) continue;
    const NarrowBytes narrow = narrow_bytes(*source);
    const bool keeps = keep != model::KeepWeights::kBf16;
    if (has_gguf(dir)) {
      bytes += keeps ? narrow.stored : narrow.dequantised;
      continue;
    }
    if (!keeps) bytes += narrow.dequantised - narrow.stored;
    for (const std::string& shard : source->shards()) {
      bytes += ReadOnlyFile(dir + "/" + shard).size();
    }
  }
  if (bytes > budget) planner::refuse_memory(bytes, budget);
}

std::vector<engine::PlanRow> request_rows(const server::Budget& budget) {
  std::vector<engine::PlanRow> rows;
  for (const server::Budget::Row& row : budget.rows()) rows.push_back({row.name, row.limit});
  return rows;
}

}  // namespace strata::apps
