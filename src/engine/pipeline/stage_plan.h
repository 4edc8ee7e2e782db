// SPDX-License-Identifier: Apache-2.0
// StagePlan: what a stage will take of the memory, before the first step: its weights, what trains,
// and its passes, counted like any other (engine/pass_workspace.h): what one works with, what each
// in flight holds, as many as its rank's queue has at once, and what is on its way to other stages.
// Engine thread of its rank only.
#pragma once
#include <cstdint>

#include "engine/pipeline/plan.h"
#include "engine/plan/memory_plan.h"

namespace strata::engine {

struct StagePlan {
  int64_t weight_bytes = 0;      // in memory
  int64_t file_bytes = 0;        // of weights that lie in files instead
  int64_t state_file_bytes = 0;  // likewise of masters and moments
  int64_t training_bytes = 0;    // adapters or masters, with gradients and moments
  int64_t pass_bytes = 0;        // that a pass works with
  int64_t held_bytes = 0;        // by a micro-batch in flight
  int64_t offloaded_bytes = 0;   // by one, in files
  int64_t border_bytes = 0;      // of states and gradients that wait to be sent
  int64_t peak_live = 0;         // micro-batches in flight
  int64_t deferred_bytes = 0;    // by one whose weight gradients wait
  int64_t peak_deferred = 0;     // such micro-batches
  int64_t message_bytes = 0;     // in the channels of what it sends (backend/thread_comm.h)
  int64_t list_bytes = 0;        // tables of positions, and lists of micro-batches in flight
  int64_t step_bytes = 0;        // of an optimizer step, beyond the pass's
  int64_t cache_bytes = 0;       // of samples that are taken between steps

  // For other stages, and for weight gradients' actions.
  [[nodiscard]] int64_t waiting_bytes() const {
    return border_bytes + peak_deferred * deferred_bytes;
  }
  // What all micro-batches in flight have in files.
  [[nodiscard]] int64_t activation_file_bytes() const { return peak_live * offloaded_bytes; }
  // What depends on the activations that are kept.
  [[nodiscard]] int64_t activation_bytes() const { return pass_bytes + peak_live * held_bytes; }
  [[nodiscard]] int64_t total() const {
    return weight_bytes + training_bytes + activation_bytes() + waiting_bytes() + message_bytes +
           list_bytes + step_bytes + cache_bytes;
  }
};

// Micro-batches between their forward and their backward on a stage, at most.
int64_t peak_live(const PipelinePlan& plan, int stage);
// And between their backward and their weight gradients.
int64_t peak_deferred(const PipelinePlan& plan, int stage);

// The plan of one stage, on an engine that has it; `shape` is a micro-batch's. Where the engine has
// no adapter, with one of the shape's modules.
StagePlan plan_stage(const PipelinePlan& plan, int stage, Engine& engine, const PlanShape& shape);

}  // namespace strata::engine
