// MemoryPlan: what a run will take, in bytes, from shapes alone, before it starts.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace strata::engine {

struct PlanShape {
  int64_t pass_tokens = 2048;
  int64_t rank = 0;         // of the adapters in the batch, every projection; 0: none
  int64_t expert_rank = 0;  // the same of routed experts
  bool backward = false;
  bool train_base = false;
  int64_t kv_positions = 0;
};

struct PlanItem {
  std::string_view name;
  int64_t bytes = 0;
};

struct MemoryPlan {
  std::vector<PlanItem> items;
  [[nodiscard]] int64_t total() const {
    int64_t sum = 0;
    for (const PlanItem& item : items) sum += item.bytes;
    return sum;
  }
};

// Weights and the adapters that the engine holds now, the largest pass of this shape, and the
// cache.
MemoryPlan plan_memory(const Engine& engine, const PlanShape& shape);

// The scratch of one pass of this shape, the ops' own working memory included.
int64_t plan_pass_bytes(const Engine& engine, const PlanShape& shape);

}  // namespace strata::engine
