// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "report/format.h"

namespace strata::planner {
namespace {

std::string decision(const engine::RecomputePlan::Row& row) {
  const auto of_all = [&](const char* what, int64_t count) {
    return count == std::ssize(row.layers)
               ? std::string(what)
               : fmt::format("{} {} of {}", what, count, row.layers.size());
  };
  if (row.num_kept == 0) return "recompute";
  const int64_t in_memory = row.num_kept - row.num_offloaded;
  if (row.num_offloaded == 0) return of_all("keep", in_memory);
  const std::string offloaded = of_all("offload", row.num_offloaded);
  return in_memory == 0 ? offloaded : of_all("keep", in_memory) + ", " + offloaded;
}

}  // namespace

std::string memory_text(const engine::MemoryPlan& plan) {
  std::string text = report::format_bytes(plan.total());
  const char* separator = ": ";
  for (const engine::PlanItem& item : plan.items) {
    if (item.bytes == 0) continue;
    text += fmt::format("{}{} {}", separator, item.name, report::format_bytes(item.bytes));
    separator = ", ";
  }
  return text;
}

std::string time_text(const TrainPlan& plan, const engine::MachineLimits& limits) {
  const double seconds = engine::seconds_of(plan.work, limits);
  return fmt::format("{} predicted: {} FLOP, {} moved; {} {} FLOP/s, {}/s",
                     report::format_seconds(seconds), report::format_count(plan.work.flops),
                     report::format_bytes(static_cast<int64_t>(plan.work.bytes)), limits.source,
                     report::format_count(limits.flops),
                     report::format_bytes(static_cast<int64_t>(limits.bytes)));
}

std::string file_text(const TrainPlan& plan, const std::string& folder) {
  std::vector<std::string> parts;
  if (plan.memory.file_bytes > 0) {
    parts.push_back(fmt::format("weights {}, which each of {:.3g} passes a step reads twice",
                                report::format_bytes(plan.memory.file_bytes), plan.num_passes));
  }
  if (plan.memory.activation_file_bytes > 0) {
    parts.push_back(fmt::format("activations {}, which a pass writes and reads",
                                report::format_bytes(plan.memory.activation_file_bytes)));
  }
  if (parts.empty()) return {};
  return fmt::format(
      "apart from that, in {}: {}; at the speed of the disk where the system has no "
      "space to keep it",
      folder, fmt::join(parts, "; "));
}

std::string activations_text(const TrainPlan& plan) {
  const engine::RecomputePlan& recompute = plan.recompute;
  report::Table table({{fmt::format("a pass of {} tokens", plan.pass.pass_tokens)},
                       {"a layer", report::Align::kRight},
                       {"layers", report::Align::kRight},
                       {"decision"},
                       {"at the peak", report::Align::kRight},
                       {"recomputed", report::Align::kRight}});
  std::vector<Scratch::Use> uses = recompute.uses;
  const auto take_use = [&](ScratchTag tag) {
    for (Scratch::Use& use : uses) {
      if (use.tag == tag) return std::exchange(use.bytes, 0);
    }
    return int64_t{0};
  };
  for (const engine::RecomputePlan::Row& row : recompute.rows) {
    const double again = row.layer_flops * static_cast<double>(row.num_again());
    table.add_row({std::string(row.tag), report::format_bytes(row.layer_bytes),
                   std::to_string(row.layers.size()), decision(row),
                   report::format_bytes(take_use(row.tag)),
                   again == 0.0 ? "" : report::format_count(again) + " FLOP"});
  }
  int64_t rest = recompute.bytes;
  for (const Scratch::Use& use : recompute.uses) rest -= use.bytes;
  uses.push_back({"of each thread", rest});
  for (const Scratch::Use& use : uses) {
    if (use.bytes == 0) continue;
    table.add_row({std::string(use.tag), "", "", "", report::format_bytes(use.bytes), ""});
  }
  return table.text();
}

void add_rows(const StagedPlan& plan, const engine::MachineLimits& limits,
              const std::string& folder, report::Table& table) {
  table.add_row(
      {"stages", fmt::format("{} on {} ranks; {}, {} micro-batches of at most {} tokens",
                             plan.stages.num_stages(), plan.stages.num_ranks(), plan.schedule,
                             plan.stages.table.num_microbatches, plan.pass_tokens)});
  table.add_row({"memory", memory_text(plan.memory)});
  if (plan.weights_in_files) {
    table.add_row({"files", fmt::format("apart from that, in {}: weights {}, which each "
                                        "micro-batch reads twice; at the speed of the disk where "
                                        "the system has no space to keep it",
                                        folder, report::format_bytes(plan.memory.file_bytes))});
  }
  const double seconds = step_seconds(plan, limits);
  table.add_row(
      {"a step", fmt::format("{} predicted; {:.3g} times its work spread evenly, "
                             "for the busiest rank, bubbles and what is recomputed; {} {} FLOP/s",
                             report::format_seconds(seconds), plan.stretch, limits.source,
                             report::format_count(limits.flops))});
}

std::string stages_table(const StagedPlan& plan) {
  report::Table table({{fmt::format("passes of {} tokens", plan.pass_tokens)},
                       {"rank", report::Align::kRight},
                       {"layers", report::Align::kRight},
                       {"weights", report::Align::kRight},
                       {"training", report::Align::kRight},
                       {"a pass", report::Align::kRight},
                       {"it holds", report::Align::kRight},
                       {"in flight", report::Align::kRight},
                       {"waiting", report::Align::kRight},
                       {"together", report::Align::kRight}});
  for (size_t i = 0; i < plan.choice.stages.size(); ++i) {
    const engine::StagePlan& stage = plan.choice.stages[i];
    const model::LayerRange& layers = plan.stages.layers[i];
    table.add_row({fmt::format("stage {}", i), std::to_string(plan.stages.ranks[i]),
                   fmt::format("{} to {}", layers.first, layers.last - 1),
                   report::format_bytes(stage.weight_bytes),
                   report::format_bytes(stage.training_bytes),
                   report::format_bytes(stage.pass_bytes), report::format_bytes(stage.held_bytes),
                   std::to_string(stage.peak_live),
                   report::format_bytes(stage.waiting_bytes() + stage.message_bytes),
                   report::format_bytes(stage.total())});
  }
  return table.text();
}

}  // namespace strata::planner
