// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/result.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "apps/bench/process.h"
#include "planner/plan_text.h"
#include "report/format.h"
#include "setup/backend.h"

namespace strata::apps {
namespace {

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

void add_plan_fields(boost::json::object& line, const BenchResult& result) {
  line["planned_gib"] = gib(result.memory.total());
  if (result.memory.activation_file_bytes > 0)
    line["file_gib"] = gib(result.memory.activation_file_bytes);
  if (!result.plan) return;
  line["pass_tokens"] = result.plan->pass.pass_tokens;
  line["recompute_gflop"] = result.plan->recompute.flops / 1e9;
}

void add_context_fields(boost::json::object& line, const ContextCost& cost) {
  line["context"] = cost.context;
  line["context_step_s"] = cost.step_seconds;
  line["context_cost_ratio"] = cost.ratio;
}

void add_grouped_product_fields(boost::json::object& line, const std::vector<GroupShares>& all) {
  for (const GroupShares& groups : all) {
    const std::string name = fmt::format("groups_of_{}_", groups.tokens_per_expert);
    line[name + "forward_share"] = groups.forward;
    line[name + "input_gradient_share"] = groups.input_gradient;
  }
}

void add_latent_attention_fields(boost::json::object& line, const LatentAttention& latent) {
  line["absorbed_attention_work_ratio"] = latent.work_ratio;
  line["latent_bytes_per_token_and_layer"] = latent.latent_bytes;
  if (latent.row_bytes > 0.0) line["cache_bytes_per_token_and_layer"] = latent.row_bytes;
}

void print_speed_and_memory(const BenchWork& work, const BenchResult& result) {
  fmt::print("{}: {}; peak {:.2f} GiB (planned {:.2f}); ready after {}\n", work.name,
             figures_text(median(result.runs), "", describe_arithmetic_in_use(), result.threads),
             peak_rss_gib(), gib(result.memory.total()), report::format_seconds(result.startup_s));
  if (result.memory.activation_file_bytes == 0) return;
  fmt::print("{}: {:.2f} GiB of activations in a file, apart from that\n", work.name,
             gib(result.memory.activation_file_bytes));
}

void print_context_cost(const BenchWork& work, const ContextCost& cost) {
  fmt::print("{}: a step behind {} tokens takes {}, {:.2f} times one behind {}\n", work.name,
             cost.context, report::format_seconds(cost.step_seconds), cost.ratio,
             cost.near_context);
}

void print_grouped_products(const BenchWork& work, const std::vector<GroupShares>& all) {
  for (const GroupShares& groups : all) {
    fmt::print(
        "{}: grouped products with {} tokens an expert: forward {:.1f} %, input gradient "
        "{:.1f} % of the peak\n",
        work.name, groups.tokens_per_expert, 100.0 * groups.forward, 100.0 * groups.input_gradient);
  }
}

void print_latent_attention(const BenchWork& work, const LatentAttention& latent) {
  fmt::print(
      "{}: cache {:.0f} bytes a token and layer, (kv_lora_rank + qk_rope_head_dim) are "
      "{}; scores and values in latent space are {:.2f} x the work of expanded heads\n",
      work.name, latent.row_bytes, latent.latent_bytes, latent.work_ratio);
}

}  // namespace

void print_json(const BenchWork& work, const BenchOptions& options, const BenchResult& result) {
  const Figures figures = median(result.runs);
  boost::json::object line;
  line["work"] = std::string(work.name);
  if (work.kind == WorkKind::kTrain) line["method"] = options.method;
  add_speed_fields(line, figures);
  add_runs_field(line, result.runs);
  line["read_gb_per_s"] = figures.bandwidth / 1e9;
  add_machine_fields(line, result.arithmetic, result.threads);
  add_plan_fields(line, result);
  line["startup_s"] = result.startup_s;
  line["repeat"] = options.repeat;
  if (result.share_of_base) line["share_of_base"] = *result.share_of_base;
  if (result.context_cost) add_context_fields(line, *result.context_cost);
  add_grouped_product_fields(line, result.groups);
  if (result.latent) add_latent_attention_fields(line, *result.latent);
  fmt::print("{}\n", boost::json::serialize(line));
}

void print_text(const BenchWork& work, const BenchResult& result) {
  print_speed_and_memory(work, result);
  const std::string faster = find_faster_arithmetic(result.dtype, result.threads);
  if (!faster.empty()) fmt::print("{}: {}\n", work.name, faster);
  if (result.plan) fmt::print("{}", planner::parts_text(*result.plan));
  if (result.share_of_base)
    fmt::print("{}: {:.1f} % of the base's speed\n", work.name, 100.0 * *result.share_of_base);
  if (result.context_cost) print_context_cost(work, *result.context_cost);
  print_grouped_products(work, result.groups);
  if (result.latent) print_latent_attention(work, *result.latent);
}

}  // namespace strata::apps
