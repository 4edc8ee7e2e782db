// SPDX-License-Identifier: Apache-2.0
// ProbeStats: what `strata probe --stats` says of the training pass that takes most: the memory it
// was planned to take and took, what of its activations was kept in memory, offloaded to files or
// recomputed, by tag, and each stage's part. Bytes of a tag are those of one micro-batch, over all
// layers; a count says in how many layers. Each rank records its own stages.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "api/batch.h"
#include "engine/runner.h"

namespace strata::apps {

class ProbeStats {
 public:
  explicit ProbeStats(const engine::PipelinePlan& plan)
      : plan_(plan), stages_(plan.layers.size()) {}

  // After a batch has run, with its gradients: each rank for the stages that it has. Of several
  // batches the one that takes most counts.
  void record(engine::Runner& pipeline, const api::Batch& batch);
  // What the process has in memory now. One rank does.
  void sample_memory();
  // A JSON object, once all ranks have ended.
  [[nodiscard]] std::string json() const;

 private:
  struct Stage {
    int rank = 0;
    int64_t layers = 0;
    int64_t weight_bytes = 0, planned_bytes = 0, peak_bytes = 0;
    int64_t peak_live = 0;
    std::map<std::string, int64_t> saved = {}, offloaded = {}, recomputed = {};
  };
  struct Heaviest;
  [[nodiscard]] Heaviest heaviest_pass(int stage, engine::Engine& engine,
                                       const api::Batch& batch) const;
  // Fills planned and weight bytes; returns those of what trains.
  int64_t plan(const Heaviest& most, engine::StageRunner& runner, Stage& stage);
  void record_stage(engine::StageRunner& runner, const api::Batch& batch);

  const engine::PipelinePlan& plan_;
  std::vector<Stage> stages_;  // each written by its own rank
  int64_t peak_bytes_ = 0;
};

}  // namespace strata::apps
