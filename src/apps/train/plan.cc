#include "apps/train/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "engine/plan/recompute_plan.h"
#include "report/format.h"
#include "report/table.h"
#include "server/options.h"

namespace strata::apps {
namespace {

// What one byte of weights costs beside one floating-point operation: every pass reads them three
// times, and memory gives so much less than the cores compute (docs/performance.md, both machines).
constexpr double kFlopsPerByte = 20.0;
constexpr int64_t kLeastPassTokens = 256;  // shorter passes are bound by memory

int64_t longest_example(const TrainJob& job) {
  int64_t longest = 0;
  for (const data::Dataset* dataset : {&job.train_data(), &job.eval_data()}) {
    for (const data::Example& example : dataset->examples) {
      longest = std::max(longest, static_cast<int64_t>(example.tokens.size()));
    }
  }
  return longest;
}

// The largest pass that a limit of `pass_tokens` and the data allow.
engine::PlanShape shape_of(TrainJob& job, int64_t pass_tokens) {
  const TrainOptions& o = job.options();
  const int64_t most = std::min({pass_tokens, o.batch_tokens, job.train_data().num_tokens});
  engine::PlanShape shape = {.pass_tokens = std::max(longest_example(job), most),
                             .backward = true,
                             .train_base = !job.is_lora()};
  if (job.is_lora()) {
    for (const model::LoraModule& module : job.engine().adapters().begin()->second->modules()) {
      shape.modules.push_back(module.spec);
    }
  }
  return shape;
}

int64_t pass_item(const engine::MemoryPlan& plan) {
  for (const engine::PlanItem& item : plan.items) {
    if (item.name == "pass") return item.bytes;
  }
  return 0;
}

// Work of a token beside its own forward and backward.
double overhead(const engine::Engine& engine, const engine::RecomputePlan& plan, int64_t tokens) {
  const auto weights = static_cast<double>(engine.model().weights->num_bytes());
  return (plan.flops + 3.0 * weights * kFlopsPerByte) / static_cast<double>(tokens);
}

}  // namespace

void fit_memory(TrainJob& job) {
  const TrainOptions& o = job.options();
  if (o.memory.empty()) return;
  engine::Engine& engine = job.engine();
  const int64_t budget = server::parse_size("memory", o.memory);
  const engine::MemoryPlan whole = engine::plan_memory(engine, shape_of(job, o.micro_tokens));
  const int64_t fixed = whole.total() - pass_item(whole);
  std::optional<engine::RecomputePlan> best;
  int64_t best_tokens = 0;
  double best_overhead = 0.0;
  std::string refusal;
  for (int64_t tokens = o.micro_tokens;; tokens /= 2) {
    const engine::PlanShape shape = shape_of(job, tokens);
    try {
      engine::RecomputePlan plan = engine::plan_recompute(engine, shape, budget - fixed);
      const double cost = overhead(engine, plan, shape.pass_tokens);
      if (!best || cost < best_overhead) {
        best = std::move(plan);
        best_tokens = tokens;
        best_overhead = cost;
      }
    } catch (const Error& error) {
      if (error.code != ErrorCode::kInvalidArgument) throw;
      refusal = error.what();
    }
    if (tokens / 2 < kLeastPassTokens || shape.pass_tokens > tokens) break;
  }
  if (!best) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--memory {}: weights, adapters and optimizer take {} of it, and {}; "
                            "give more, or drop longer examples with --max-length",
                            o.memory, report::format_bytes(fixed), refusal));
  }
  engine.set_pass(best_tokens, best->recompute);
}

std::string memory_text(TrainJob& job) {
  const engine::MemoryPlan plan =
      engine::plan_memory(job.engine(), shape_of(job, job.engine().options().pass_tokens));
  std::string text = report::format_bytes(plan.total());
  const char* separator = ": ";
  for (const engine::PlanItem& item : plan.items) {
    if (item.bytes == 0) continue;
    text += fmt::format("{}{} {}", separator, item.name, report::format_bytes(item.bytes));
    separator = ", ";
  }
  return text;
}

std::string recompute_text(TrainJob& job) {
  const engine::EngineOptions& options = job.engine().options();
  if (options.recompute.keeps_all()) return {};
  const engine::PlanShape shape = shape_of(job, options.pass_tokens);
  const engine::RecomputePlan plan =
      engine::describe_recompute(job.engine(), shape, options.recompute);
  report::Table table({{fmt::format("activations of {} tokens", shape.pass_tokens)},
                       {"a layer", report::Align::kRight},
                       {"kept in layers", report::Align::kRight},
                       {"made again", report::Align::kRight}});
  for (const engine::RecomputePlan::Row& row : plan.rows) {
    const int64_t again = row.num_layers - row.num_kept;
    table.add_row(
        {std::string(row.tag), report::format_bytes(row.layer_bytes),
         fmt::format("{} of {}", row.num_kept, row.num_layers),
         fmt::format("{:.1f} GFLOP", row.layer_flops * static_cast<double>(again) / 1e9)});
  }
  return table.text();
}

}  // namespace strata::apps
