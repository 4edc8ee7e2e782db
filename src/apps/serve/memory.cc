// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/memory.h"

#include "base/files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/source.h"
#include "setup/weights_text.h"

namespace strata::apps {

namespace {

// As they are loaded; 0 where the folder has none.
int64_t count_weight_bytes(const std::string& dir, bool keeps_narrow) {
  const auto source = find_weights(dir);
  if (source == nullptr) return 0;
  const NarrowBytes narrow = count_quantised_bytes(*source);
  if (is_gguf(dir)) return keeps_narrow ? narrow.stored : narrow.dequantised;
  int64_t bytes = keeps_narrow ? 0 : narrow.dequantised - narrow.stored;
  for (const std::string& shard : source->shards()) {
    bytes += ReadOnlyFile(dir + "/" + shard).size();
  }
  return bytes;
}

}  // namespace

void check_weights_fit(std::span<const std::string> directories, int64_t budget,
                       model::KeepWeights keep) {
  int64_t bytes = 0;
  for (const std::string& dir : directories)
    bytes += count_weight_bytes(dir, keep != model::KeepWeights::kBf16);
  if (bytes > budget) planner::refuse_memory(bytes, budget);
}

std::vector<engine::PlanRow> request_rows(const server::Budget& budget) {
  std::vector<engine::PlanRow> rows;
  for (const server::Budget::Row& row : budget.bytes_by_use())
    rows.push_back({row.name, row.limit});
  return rows;
}

}  // namespace strata::apps
