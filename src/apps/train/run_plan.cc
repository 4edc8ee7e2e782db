// SPDX-License-Identifier: Apache-2.0
#include "apps/train/run_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/file_memory.h"
#include "base/process_memory.h"
#include "model/adapter/specs.h"
#include "server/options/options.h"

namespace strata::apps {
namespace {

// Of examples what is in memory; and of each run of them the order of an epoch, its shuffle and
// their lengths.
int64_t bytes_of(const data::Dataset& dataset, int64_t num_runs) {
  constexpr int64_t kLists = 4 * sizeof(int64_t);
  return dataset.examples.memory_bytes() + num_runs * std::ssize(dataset.examples.order()) * kLists;
}

int64_t longest_of(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// Every pass that the run will make.
void add_passes_of_run(planner::RunShape& shape, const TrainSettings& settings,
                       const planner::Division& division, const std::vector<int64_t>& eval) {
  data::BatchPlan batches(shape.lengths, batch_plan_options(settings));
  std::vector<std::vector<int64_t>> passes;
  double total = 0.0;
  for (int64_t step = 0; step < batches.num_steps(); ++step) {
    passes.clear();
    int64_t tokens = 0;
    for (const std::vector<int64_t>& pass : batches.step(step).passes) {
      std::vector<int64_t>& lengths = passes.emplace_back();
      for (const int64_t i : pass) lengths.push_back(shape.lengths[static_cast<size_t>(i)]);
      tokens = std::accumulate(lengths.begin(), lengths.end(), tokens);
    }
    planner::add_step(shape, division, passes);
    shape.largest_step = std::max(shape.largest_step, tokens);
    total += static_cast<double>(tokens);
  }
  // Without a limit of examples every step but an epoch's last is about full.
  if (settings.batch_size > 0) {
    shape.step_tokens =
        static_cast<int64_t>(std::ceil(total / static_cast<double>(batches.num_steps())));
  }
  planner::add_evaluation(shape, division, eval);
}

}  // namespace

std::optional<planner::Budget> budget_of(const std::string& memory) {
  if (memory.empty()) return std::nullopt;
  return planner::Budget{server::parse_size("memory", memory), memory};
}

planner::FileSpace space_for_files(const std::string& named) {
  if (!named.empty()) return {.most = INT64_MAX};
  const std::string folder = usable_offload_folder(named);
  if (folder.empty()) return {};
  return {.most = std::max<int64_t>(0, FileAllocator::free_bytes(folder) / 2),
          .memory = usable_memory()};
}

planner::RunShape train_shape(const LoadSpec& spec, const TrainSettings& settings,
                              const model::ModelConfig& config, const planner::Division& division,
                              const TrainData& data) {
  const TrainOptions& options = settings.options;
  const auto& [train, eval] = data;
  const bool is_lora = options.method == "lora";
  const std::vector<int64_t> lengths = train.examples.lengths();
  const std::vector<int64_t> evaluated = eval.examples.lengths();
  planner::RunShape shape = {
      .pass = {.backward = true,
               .train_base = !is_lora,
               .mtp = config.use_mtp,
               .indexer_loss = options.indexer_loss > 0},
      .micro_tokens = options.micro_tokens,
      .lengths = lengths,
      .longest = std::max(longest_of(lengths), longest_of(evaluated)),
      .step_tokens = std::min(batch_plan_options(settings).batch_tokens, train.num_tokens),
      .file_space = space_for_files(options.offload),
      .price = spec.limits ? engine::price_of(*spec.limits) : engine::Price()};
  add_passes_of_run(shape, settings, division, evaluated);
  shape.pass.kv_positions = settings.sample_positions;
  shape.pass.num_sampled = std::ssize(options.samples);
  const int64_t num_runs = std::max<int64_t>(1, std::ssize(options.sweep));
  shape.pass.data_bytes = bytes_of(train, num_runs) + bytes_of(eval, num_runs);
  if (train.examples.store() == eval.examples.store()) {  // which both then share
    shape.pass.data_bytes -= eval.examples.store()->memory_bytes();
  }
  if (is_lora) {
    shape.pass.modules = modules_of(settings, config);
    shape.pass.num_adapters = num_runs;
  }
  return shape;
}

}  // namespace strata::apps
