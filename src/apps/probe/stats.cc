// SPDX-License-Identifier: Apache-2.0
#include "apps/probe/stats.h"

#include <algorithm>
#include <boost/json.hpp>
#include <optional>

#include "base/process_memory.h"
#include "engine/pipeline/dealt_rows.h"
#include "engine/pipeline/stage_runner.h"
#include "planner/planner.h"
#include "setup/ranks.h"
#include "setup/sent_text.h"

namespace strata::apps {
namespace {

namespace json = boost::json;

// Whether backward makes this activation again (model/pass/recompute.h).
bool is_recomputed(const engine::Engine& engine, const model::SavedCost& cost) {
  const model::RecomputeRegions& regions = engine.options().regions;
  if (!regions.any()) return false;
  if (cost.tag != model::kLayerInputTag)
    return !engine.options().recompute.keeps(cost.layer, cost.tag);
  return regions.makes_stage() && !regions.keeps_layer_inputs &&
         cost.layer != engine.model().weights->part().first;
}

json::object object_of(const std::map<std::string, int64_t>& by_tag) {
  json::object out;
  for (const auto& [tag, value] : by_tag) out[tag] = value;
  return out;
}

// Without the tokens of a pass.
engine::PlanShape pass_shape_of(const api::Batch& batch) {
  return {.pass_tokens = 0,
          .backward = batch.gradients != api::Gradients::kNone,
          .train_base = batch.gradients == api::Gradients::kParameters,
          .mtp = batch.mtp_weight > 0.0f,
          .indexer_loss = batch.indexer_weight > 0.0f};
}

// What passes took, of a stage that has run some.
int64_t peak_pass_bytes(engine::StageRunner& runner) {
  Backend& backend = runner.engine().backend();
  return backend.scratch().high_water() + backend.worker_high_water() * backend.parallelism() +
         runner.peak_live() * runner.held_bytes() + runner.border_bytes() +
         runner.peak_deferred() * runner.deferred_bytes();
}

void add_by_tag(const std::map<std::string, int64_t>& from, std::map<std::string, int64_t>& to) {
  for (const auto& [tag, value] : from) to[tag] += value;
}

}  // namespace

struct ProbeStats::Heaviest {
  engine::PlanShape shape;                    // with the tokens of the longest pass
  std::optional<engine::PassPlan> plan = {};  // of the pass that takes most

  void add_pass(engine::PassPlan counted, int64_t num_tokens) {
    const auto bytes = [](const engine::PassPlan& pass) { return pass.total() + pass.kept(); };
    shape.pass_tokens = std::max(shape.pass_tokens, num_tokens);
    if (!plan || bytes(counted) > bytes(*plan)) plan = std::move(counted);
  }
};

ProbeStats::Heaviest ProbeStats::plan_heaviest_pass(int stage, engine::Engine& engine,
                                                    const api::Batch& batch) const {
  Heaviest most = {.shape = pass_shape_of(batch)};
  engine::Round round;
  round.num_dealt = engine::num_dealing(plan_, batch);
  const bool deals_rows = plan_.expert > 1 && round.num_dealt > 1;
  if (deals_rows) round.num_at_once = plan_.expert;
  model::DealtRows dealt;
  while (next_round(plan_, engine.options().pass_tokens, batch, round)) {
    for (int m = 0; m < round.num_microbatches(); ++m) {
      round.dealt = m % round.num_dealt;
      const auto first = round.firsts.begin() + m;
      engine::MicroBatch rows;
      engine::PassWork work = rows.collate(engine, batch, first[0], first[1]);
      if (deals_rows) {
        engine::lay_out_dealt_rows(engine, batch, round.firsts_of_group(m / round.num_dealt),
                                   round.num_at_once, dealt);
        work.dealt = &dealt;
      }
      most.add_pass(engine::plan_pass(engine, work, rows.state(), plan_.has_flights(),
                                      plan_.defers_weight_gradients(stage)),
                    rows.builder().num_tokens());
    }
  }
  return most;
}

void ProbeStats::record_stages(engine::Runner& pipeline, const api::Batch& batch) {
  const int place = pipeline.comm().rank() % plan_.num_pipelines();
  for (const auto& runner : pipeline.stages()) record_stage(*runner, place, batch);
  if (is_first_here(pipeline.comm().rank())) sample_memory();
}

void ProbeStats::sample_memory() {
  peak_bytes_ = std::max(peak_bytes_, read_process_memory().anonymous);
}

void ProbeStats::add_activation_bytes(const engine::Engine& engine, const engine::PassPlan& pass,
                                      Stage& stage) {
  for (const model::SavedCost& cost : pass.saved) {
    const std::string tag(cost.tag);
    if (is_recomputed(engine, cost)) {
      ++stage.recomputed[tag];
    } else if (engine.options().recompute.offloads(cost.layer, cost.tag)) {
      stage.offloaded[tag] += cost.bytes;
    } else {
      stage.saved[tag] += cost.bytes;
    }
  }
}

ProbeStats::Stage ProbeStats::measure_stage(engine::StageRunner& runner, int pipeline,
                                            const api::Batch& batch) const {
  engine::Engine& engine = runner.engine();
  const int rank =
      plan_.ranks[static_cast<size_t>(runner.stage())] * plan_.num_pipelines() + pipeline;
  Stage stage = {.rank = rank,
                 .layers = engine.model().weights->part().size(),
                 .peak_live = runner.peak_live()};
  const Heaviest most = plan_heaviest_pass(runner.stage(), engine, batch);
  const engine::PassPlan pass = most.plan.value_or(engine::PassPlan());
  const engine::StagePlan planned =
      planner::plan_stage(plan_, runner.stage(), engine, most.shape, pass);
  stage.weight_bytes = planned.weight_bytes;
  stage.shared_bytes = engine.model().weights->shared_bytes();
  stage.planned_bytes = planned.total();
  stage.peak_bytes = planned.weight_bytes + planned.training_bytes + peak_pass_bytes(runner);
  add_activation_bytes(engine, pass, stage);
  return stage;
}

void ProbeStats::record_stage(engine::StageRunner& runner, int pipeline, const api::Batch& batch) {
  Stage stage = measure_stage(runner, pipeline, batch);
  Stage& kept = stages_[static_cast<size_t>(runner.stage() * plan_.num_pipelines() + pipeline)];
  if (stage.planned_bytes >= kept.planned_bytes) kept = std::move(stage);
}

// What stages of this process have recorded, for rank 0 of another one.
std::string ProbeStats::records_json() const {
  json::array stages;
  for (size_t at = 0; at < stages_.size(); ++at) {
    const Stage& stage = stages_[at];
    if (stage.rank < 0) continue;
    json::object record = {{"at", at}};
    json::array& numbers = record["numbers"].emplace_array();
    for (const auto number : kNumbers) numbers.push_back(stage.*number);
    for (const auto& [name, tags] : kTags) record[name] = object_of(stage.*tags);
    stages.push_back(std::move(record));
  }
  return json::serialize(json::object{{"peak", peak_bytes_}, {"stages", std::move(stages)}});
}

ProbeStats::Stage ProbeStats::parse_stage_record(const json::object& record) {
  Stage stage;
  for (size_t i = 0; i < std::size(kNumbers); ++i)
    stage.*kNumbers[i] = record.at("numbers").at(i).as_int64();
  for (const auto& [name, tags] : kTags) {
    for (const auto& [tag, bytes] : record.at(name).as_object())
      (stage.*tags)[std::string(tag)] = bytes.as_int64();
  }
  return stage;
}

void ProbeStats::add_records(const std::string& text) {
  const json::object records = json::parse(text).as_object();
  peak_bytes_ += records.at("peak").as_int64();
  for (const json::value& value : records.at("stages").as_array()) {
    const json::object& record = value.as_object();
    stages_[static_cast<size_t>(record.at("at").as_int64())] = parse_stage_record(record);
  }
}

void ProbeStats::gather_records(Comm& processes) {
  num_processes_ = processes.size();
  const std::vector<std::string> records = gather_texts(processes, records_json());
  for (size_t rank = 1; rank < records.size(); ++rank) add_records(records[rank]);
  sent_.resize(static_cast<size_t>(plan_.num_ranks_in_all()));  // of no training: nothing
  planned_sent_.resize(sent_.size());
}

json::object ProbeStats::stage_json(const Stage& stage) {
  return {{"rank", stage.rank},
          {"layers", stage.layers},
          {"weight_bytes", stage.weight_bytes},
          {"peak_bytes", stage.peak_bytes},
          {"peak_live_microbatches", stage.peak_live}};
}

ProbeStats::Stage ProbeStats::sum_of_stages() const {
  Stage sum = {.planned_bytes = num_processes_ * engine::kProcessBytes, .peak_bytes = peak_bytes_};
  if (num_processes_ > 1) sum.planned_bytes += num_processes_ * engine::kMpiBytes;
  for (const Stage& stage : stages_) {
    sum.planned_bytes += stage.planned_bytes;
    sum.peak_bytes += stage.shared_bytes;
    if (stage.rank / plan_.expert % plan_.data != 0) continue;  // data ranks are alike
    add_by_tag(stage.saved, sum.saved);
    add_by_tag(stage.offloaded, sum.offloaded);
    if (stage.rank % plan_.num_pipelines() == 0) add_by_tag(stage.recomputed, sum.recomputed);
  }
  return sum;
}

std::string ProbeStats::json() const {
  const Stage sum = sum_of_stages();
  json::array stages;
  for (const Stage& stage : stages_) stages.push_back(stage_json(stage));
  json::object all = {
      {"planned_bytes", sum.planned_bytes},      {"peak_bytes", sum.peak_bytes},
      {"saved_bytes", object_of(sum.saved)},     {"offloaded_bytes", object_of(sum.offloaded)},
      {"recomputed", object_of(sum.recomputed)}, {"stages", std::move(stages)}};
  if (!sent_.empty()) {
    all["sent_bytes"] = json::parse(sent_json(sent_));
    all["ranks"] = json::parse(sent_by_rank_json(sent_, planned_sent_));
  }
  return json::serialize(all) + "\n";
}

}  // namespace strata::apps
