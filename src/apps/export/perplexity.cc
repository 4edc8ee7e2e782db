// SPDX-License-Identifier: Apache-2.0
#include "apps/export/perplexity.h"

#include <cmath>
#include <vector>

#include "apps/setup/scoring.h"
#include "apps/setup/stages.h"
#include "backend/thread_comm.h"

namespace strata::apps {
namespace {

constexpr int64_t kPassTokens = 2048;

}  // namespace

double perplexity(const std::string& model, const std::string& adapter, const data::Dataset& data,
                  int threads, DType dtype) {
  const EngineSetup setup = {
      .model = model, .dtype = dtype == DType::kF32 ? "f32" : "bf16", .threads = threads};
  const engine::PipelinePlan plan = plan_stages(setup, {});
  double loss = 0;
  run_ranks(1, [&](Comm& comm) {
    const auto pipeline = make_runner(comm, plan, setup, {.pass_tokens = kPassTokens});
    const std::vector<api::AdapterSlot> slots = {adapter.empty() ? api::AdapterSlot::kBase
                                                                 : pipeline->load_adapter(adapter)};
    loss = score(*pipeline, slots, data, kPassTokens, WantTop::kNo)[0].total.loss();
  });
  return std::exp(loss);
}

}  // namespace strata::apps
