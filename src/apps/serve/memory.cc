// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/memory.h"

#include <filesystem>

#include "apps/setup/model_files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/source.h"

namespace strata::apps {

void check_weights_fit(std::span<const std::string> directories, int64_t budget,
                       model::KeepWeights keep) {
  int64_t bytes = 0;
  for (const std::string& dir : directories) {
    std::error_code ignored;
    const auto source = find_weights(dir);
    const NarrowBytes narrow = source == nullptr ? NarrowBytes() : narrow_bytes(*source);
    const bool keeps = keep != model::KeepWeights::kBf16;
    if (has_gguf(dir)) {
      bytes += keeps ? narrow.stored : narrow.dequantised;
    } else if (!keeps) {
      bytes += narrow.dequantised - narrow.stored;
    }
    for (const auto& file : std::filesystem::directory_iterator(dir, ignored)) {
      if (file.path().extension() == ".safetensors")
        bytes += static_cast<int64_t>(file.file_size(ignored));
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
