// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "report/format.h"

namespace strata::planner {
namespace {

using enum engine::MemoryUse;

std::string decision_text(const engine::RecomputePlan::Row& row) {
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

std::string memory_text(const engine::MemoryPlan& plan) {
  std::string text = report::format_bytes(plan.total());
  const char* separator = ": ";
  for (const engine::PlanItem& item : plan.items) {
    if (item.bytes == 0) continue;
    text += fmt::format("{}{} {}", separator, engine::memory_use_name(item.use),
                        report::format_bytes(item.bytes));
    separator = ", ";
  }
  return text;
}

std::string time_text(const engine::RunPlan& plan, const engine::MachineLimits& limits) {
  const std::string seconds = report::format_seconds(engine::step_seconds(plan, limits));
  if (!plan.pipeline.is_whole()) {
    return fmt::format(
        "{} predicted; {:.3g} times its work spread evenly, "
        "for the busiest rank, bubbles and what is recomputed; {} {} FLOP/s",
        seconds, plan.stretch, limits.source, report::format_count(limits.flops));
  }
  const engine::Work& work = plan.work.front();
  return fmt::format("{} predicted: {} FLOP, {} moved; {} {} FLOP/s, {} in f32, {}/s", seconds,
                     report::format_count(work.flops),
                     report::format_bytes(static_cast<int64_t>(work.bytes)), limits.source,
                     report::format_count(limits.flops), report::format_count(limits.f32_flops),
                     report::format_bytes(static_cast<int64_t>(limits.bytes)));
}

// What is in files there, and how often it moves; empty where nothing does.
std::string file_text(const engine::RunPlan& plan, const std::string& folder) {
  std::vector<std::string> parts;
  if (plan.memory.file_bytes > 0) {
    parts.push_back(fmt::format(
        "weights {}, which each {} reads twice", report::format_bytes(plan.memory.file_bytes),
        plan.pipeline.is_whole() ? fmt::format("of {:.3g} passes a step", plan.num_passes)
                                 : "micro-batch"));
  }
  if (plan.memory.state_file_bytes > 0) {
    parts.push_back(fmt::format("masters and moments {}, which a step reads and writes",
                                report::format_bytes(plan.memory.state_file_bytes)));
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

// The bytes of the tag, which are none then.
int64_t take_bytes_of_tag(std::vector<Scratch::Use>& uses, ScratchTag tag) {
  for (Scratch::Use& use : uses) {
    if (use.tag == tag) return std::exchange(use.bytes, 0);
  }
  return 0;
}

// Those of the pass's bytes that are no tag's.
int64_t bytes_of_threads(const engine::RecomputePlan& plan) {
  int64_t rest = plan.bytes;
  for (const Scratch::Use& use : plan.uses) rest -= use.bytes;
  return rest;
}

std::string activations_text(const engine::RunPlan& plan) {
  const engine::RecomputePlan& recompute = plan.recompute;
  report::Table table({{fmt::format("a pass of {} tokens", plan.pass.pass_tokens)},
                       {"a layer", report::Align::kRight},
                       {"layers", report::Align::kRight},
                       {"decision"},
                       {"at the peak", report::Align::kRight},
                       {"recomputed", report::Align::kRight}});
  std::vector<Scratch::Use> uses = recompute.uses;
  for (const engine::RecomputePlan::Row& row : recompute.rows) {
    const double again = row.layer_flops * static_cast<double>(row.num_again());
    table.add_row({std::string(row.tag), report::format_bytes(row.layer_bytes),
                   std::to_string(row.layers.size()), decision_text(row),
                   report::format_bytes(take_bytes_of_tag(uses, row.tag)),
                   again == 0.0 ? "" : report::format_count(again) + " FLOP"});
  }
  uses.push_back({"of each thread", bytes_of_threads(recompute)});
  for (const Scratch::Use& use : uses) {
    if (use.bytes == 0) continue;
    table.add_row({std::string(use.tag), "", "", "", report::format_bytes(use.bytes), ""});
  }
  return table.text();
}

std::string stages_text(const engine::RunPlan& plan) {
  report::Table table({{fmt::format("passes of {} tokens", plan.pass.pass_tokens)},
                       {"rank", report::Align::kRight},
                       {"layers", report::Align::kRight},
                       {"weights", report::Align::kRight},
                       {"training", report::Align::kRight},
                       {"a pass", report::Align::kRight},
                       {"it holds", report::Align::kRight},
                       {"in flight", report::Align::kRight},
                       {"waiting", report::Align::kRight},
                       {"together", report::Align::kRight}});
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const engine::StagePlan& stage = plan.stages[i];
    const model::LayerRange& layers = plan.pipeline.layers[i];
    table.add_row({fmt::format("stage {}", i), std::to_string(plan.pipeline.ranks[i]),
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

std::string weights_label(const engine::ServerShares& server) {
  if (server.narrow > 0)
    return fmt::format("weights, dequantised from {}", report::format_bytes(server.narrow));
  return server.keeps ? "weights, in 4 to 8 bits" : "weights";
}

std::string capacity_line(const engine::RunPlan& plan) {
  const engine::ServerShares& server = plan.server;
  return fmt::format(
      "{} adapters of rank 32, {} tokens per pass (one datum: {}), {} samples of 2,048\n",
      plan.memory.bytes_of(kAdapters) / server.slot_rank_32, plan.pass.pass_tokens,
      server.longest_data[0],
      (plan.memory.bytes_of(kKvCache) + plan.memory.bytes_of(kStates)) / server.sample_bytes);
}

}  // namespace

void add_plan_rows(const engine::RunPlan& plan, const engine::MachineLimits& limits,
                   const std::string& folder, report::Table& table) {
  if (!plan.pipeline.is_whole()) {
    table.add_row(
        {"stages", fmt::format("{} on {} ranks; {}, {} micro-batches of at most {} tokens",
                               plan.pipeline.num_stages(), plan.pipeline.num_ranks(), plan.schedule,
                               plan.pipeline.table.num_microbatches, plan.pass.pass_tokens)});
  }
  table.add_row({"memory", memory_text(plan.memory)});
  const std::string files = file_text(plan, folder);
  if (!files.empty()) table.add_row({"files", files});
  table.add_row({"a step", time_text(plan, limits)});
}

std::string machine_text(const engine::RunPlan& plan, const Backend& backend) {
  const auto threads = backend.parallelism();
  return fmt::format("CPU path {}, {} thread{}{}", backend.arithmetic(), threads,
                     threads == 1 ? "" : "s", plan.pipeline.is_whole() ? "" : " a rank");
}

std::string parts_text(const engine::RunPlan& plan) {
  return plan.pipeline.is_whole() ? activations_text(plan) : stages_text(plan);
}

std::string server_text(const engine::RunPlan& plan) {
  const engine::ServerShares& server = plan.server;
  report::Table table(
      {{"memory plan"}, {"bytes", report::Align::kRight}, {"", report::Align::kRight}});
  const auto row = [&](const std::string& name, int64_t bytes) {
    table.add_row({name, std::to_string(bytes), report::format_bytes(bytes)});
  };
  const auto item = [&](const std::string& name, engine::MemoryUse use) {
    row(name, plan.memory.bytes_of(use));
  };
  item(weights_label(server), kWeights);
  item("process", kProcess);
  for (const engine::PlanRow& each : server.requests)
    row(fmt::format("requests' {}, at most", each.name), each.bytes);
  item(fmt::format("passes of {} tokens, longer data", plan.pass.pass_tokens), kPasses);
  item("sampling steps", kSamplingSteps);
  item("kv cache, at most", kKvCache);
  if (plan.memory.bytes_of(kStates) > 0) item("states of sequences, at most", kStates);
  item("adapters, at most", kAdapters);
  item("sampler weights, at most", kSamplerWeights);
  row("in all (--memory)", server.budget);
  row("one adapter of rank 8", server.slot_rank_8);
  row("one adapter of rank 32", server.slot_rank_32);
  row(fmt::format("one adapter of rank {}", server.max_rank), server.slot_max_rank);
  row("activations, each token", server.token_bytes);
  if (server.file_bytes[0] > 0) row("of the longest datum, in a file", server.file_bytes[0]);
  return table.text() + capacity_line(plan);
}

}  // namespace strata::planner
