// SPDX-License-Identifier: Apache-2.0
// ProbeStats: what `strata probe --stats` says of the training pass that takes most: the memory it
// was planned to take and took, what of its activations was kept in memory, offloaded to files or
// recomputed, by tag, and each stage's part. Bytes of a tag are those of one micro-batch, over all
// layers; a count says in how many layers. Each rank records its own stages.
#pragma once
#include <boost/json/object.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "api/batch.h"
#include "backend/process_ranks.h"
#include "engine/pass.h"
#include "engine/runner.h"

namespace strata::apps {

class ProbeStats {
 public:
  // `ranks`: those that each process has.
  ProbeStats(const engine::PipelinePlan& plan, const ProcessRanks& ranks)
      : plan_(plan),
        ranks_(ranks),
        stages_(plan.layers.size() * static_cast<size_t>(plan.num_pipelines())) {}

  // After a batch has run, with its gradients: each rank for the stages that it has. Of several
  // batches the one that takes most counts.
  void record_stages(engine::Runner& pipeline, const api::Batch& batch);
  // Whether it is the rank that samples the memory of its process as it is now.
  [[nodiscard]] bool is_first_here(int rank) const { return ranks_.thread_of(rank) == 0; }
  void sample_memory();
  // Tells, on the first rank, what each rank has sent for its last training pass and the optimizer
  // steps behind it; and what it was planned to send.
  void set_sent_bytes(std::vector<engine::SentBytes> sent, std::vector<engine::SentBytes> planned) {
    sent_ = std::move(sent);
    planned_sent_ = std::move(planned);
  }
  // Gathers the processes' records on the first one. Collective.
  void gather_records(Comm& processes);
  // A JSON object, once all ranks have ended.
  [[nodiscard]] std::string json() const;

 private:
  using Tags = std::map<std::string, int64_t>;
  struct Stage {
    int64_t rank = -1, layers = 0;
    int64_t weight_bytes = 0, planned_bytes = 0, peak_bytes = 0;
    int64_t peak_live = 0;
    int64_t shared_bytes = 0;  // of weights, this process's part in those of several
    Tags saved = {}, offloaded = {}, recomputed = {};
  };
  // What a record has of it, in this order.
  static constexpr int64_t Stage::* kNumbers[] = {
      &Stage::rank,       &Stage::layers,    &Stage::weight_bytes, &Stage::planned_bytes,
      &Stage::peak_bytes, &Stage::peak_live, &Stage::shared_bytes};
  static constexpr std::pair<const char*, Tags Stage::*> kTags[] = {
      {"saved", &Stage::saved},
      {"offloaded", &Stage::offloaded},
      {"recomputed", &Stage::recomputed}};
  struct Heaviest;
  [[nodiscard]] Heaviest plan_heaviest_pass(int stage, engine::Engine& engine,
                                            const api::Batch& batch) const;
  // `pipeline`: of those that have the stage, the place of the rank's.
  [[nodiscard]] Stage measure_stage(engine::StageRunner& runner, int pipeline,
                                    const api::Batch& batch) const;
  void record_stage(engine::StageRunner& runner, int pipeline, const api::Batch& batch);

  // Bytes and tags of them all, with what the processes take besides.
  [[nodiscard]] Stage sum_of_stages() const;
  [[nodiscard]] std::string records_json() const;
  // Parses the records of another rank, and adds them.
  void add_records(const std::string& text);
  static void add_activation_bytes(const engine::Engine& engine, const engine::PassPlan& pass,
                                   Stage& stage);
  static Stage parse_stage_record(const boost::json::object& record);
  static boost::json::object stage_json(const Stage& stage);

  const engine::PipelinePlan& plan_;
  const ProcessRanks ranks_;
  std::vector<Stage> stages_;  // of each rank that has it, each written by its own rank
  int64_t peak_bytes_ = 0;
  int num_processes_ = 1;
  std::vector<engine::SentBytes> sent_, planned_sent_;  // of ranks of processes
};

}  // namespace strata::apps
