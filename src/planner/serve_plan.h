// SPDX-License-Identifier: Apache-2.0
// ServePlan: how the memory of a server is divided before it starts: weights, the largest pass and
// what requests may hold are taken as they are; what is left goes to the KV cache, adapters and
// sampler weights, each of which takes its share only as it is used. Pure arithmetic.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/pipeline/plan.h"

namespace strata::planner {

struct PlanRow {
  std::string name;
  int64_t bytes = 0;
};

// A model that is served: its stages, and how they divide it; without a plan one, which is whole.
struct ServedModel {
  std::vector<engine::Engine*> stages;
  const engine::PipelinePlan* plan = nullptr;
};

struct ServePlan {
  int64_t budget = 0;
  int64_t weights = 0;  // of all models
  int64_t narrow = 0;   // of their files, what is stored in few bits and dequantised
  bool keeps = false;   // some of them in few bits
  int64_t process = 0;
  std::vector<PlanRow> requests;  // what they may make the server hold, by what it is
  int64_t passes = 0;  // scratch of each model's training passes, or of its longest datum
  int64_t steps = 0;   // and of its largest sampling step, which may run in the midst of one
  int64_t kv = 0;      // limits of all models together
  int64_t states = 0;  // likewise, of sequences' states
  int64_t adapters = 0;
  int64_t snapshots = 0;
  int64_t pass_tokens = 0;
  // Of the first model, for people.
  int64_t slot_rank_8 = 0, slot_rank_32 = 0, slot_max_rank = 0, max_rank = 0;
  int64_t token_bytes = 0;   // activations of a training pass, each token
  int64_t sample_bytes = 0;  // KV of 2,048 positions, and a state
  // Of each model.
  // Tokens that fit a pass alone, with full recompute, its layers' inputs in a file where the
  // engine may offload; and what such a pass takes of the file.
  std::vector<int64_t> longest_data;
  std::vector<int64_t> file_bytes;
  std::vector<int64_t> max_pages;
  std::vector<int64_t> max_states;
  std::vector<int64_t> pass_bytes;  // of each stage of each

  // The table, and the line that says what fits.
  [[nodiscard]] std::string text() const;
};

// Error{kResourceExhausted} when not even one adapter of rank 8 and one sample of 2,048 positions
// fit: what is needed, what there is, and what to change.
ServePlan plan_serve(const std::vector<ServedModel>& models, int64_t budget, int64_t max_rank,
                     int64_t max_sample_rows, const std::vector<PlanRow>& requests,
                     model::ExpertRank expert_rank = model::ExpertRank::kDivided);
// Of whole models.
ServePlan plan_serve(std::span<engine::Engine* const> engines, int64_t budget, int64_t max_rank,
                     int64_t max_sample_rows, const std::vector<PlanRow>& requests,
                     model::ExpertRank expert_rank = model::ExpertRank::kDivided);

// That Error.
[[noreturn]] void refuse_memory(int64_t needed, int64_t budget);

}  // namespace strata::planner
