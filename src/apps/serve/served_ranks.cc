// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/served_ranks.h"

#include <fmt/format.h>

#include "base/error.h"
#include "setup/model_identity.h"
#include "setup/ranks.h"
#include "setup/text_stack.h"

namespace strata::apps {
namespace {

[[noreturn]] void refuse(const schedule::ParallelLayout& layout, const std::string& why) {
  throw Error(ErrorCode::kUnsupported, fmt::format("--ranks {}: {}", layout.text(), why));
}

}  // namespace

void check_served_division(const schedule::ParallelLayout& layout,
                           const server::ServeOptions& options) {
  if (layout.data > 1) {
    refuse(layout,
           "a server has no data ranks: they share the sequences of one batch, and each would hold "
           "every adapter and cache; start a server on each machine, or give pipeline=N");
  }
  if (layout.expert > 1 && layout.tensor > 1) {
    refuse(layout,
           "serve divides a model's matrices or its experts yet; give tensor=N or expert=N, alone "
           "or with pipeline=N");
  }
  if (options.stages > 1) {
    refuse(layout, fmt::format("with --stages {}: each process of a server has one stage; give one "
                               "of them",
                               options.stages));
  }
}

void check_processes_alike(Comm& processes, const std::vector<std::string>& directories,
                           const HostOptions& options) {
  RankFacts facts = collect_rank_facts(OptionTable());
  for (const std::string& dir : directories)
    facts.emplace_back("base model (hash)", compute_model_identity(open_texts(dir)));
  for (const ServedAdapter& adapter : options.served)
    facts.emplace_back("--adapter (hash)", hash_adapter_or_model(adapter.dir));
  facts.emplace_back("--dtype", options.dtype);
  facts.emplace_back("--weights", options.weights);
  facts.emplace_back("--context", fmt::format("{}", options.context));
  facts.emplace_back("--max-rank", fmt::format("{}", options.adapters.max_rank));
  facts.emplace_back("--max-adapters", fmt::format("{}", options.adapters.max_models));
  facts.emplace_back("--expert-rank", fmt::format("{}", static_cast<int>(options.expert_rank)));
  facts.emplace_back("--prefix-cache", options.prefix_cache ? "on" : "off");
  check_ranks_alike(processes, facts);
}

}  // namespace strata::apps
