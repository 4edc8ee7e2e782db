// SPDX-License-Identifier: Apache-2.0
// Replaces what a command's options name by paths: models and adapters, by what the user typed
// (setup/model_path.h). Files of data are looked for: an Error where one is not there. Before
// a command runs; options of others stay as they are.
#pragma once
#include "apps/options.h"

namespace strata::apps {

void resolve_paths(TrainOptions& o);
void resolve_paths(PlanOptions& o);
void resolve_paths(DataOptions& o);
void resolve_paths(EvalOptions& o);
void resolve_paths(GenerateOptions& o);
void resolve_paths(ChatOptions& o);
void resolve_paths(ProbeOptions& o);
void resolve_paths(InspectOptions& o);
void resolve_paths(InitOptions& o);
void resolve_paths(MergeOptions& o);
void resolve_paths(ConvertOptions& o);
void resolve_paths(TokenizeOptions& o);
void resolve_paths(BenchOptions& o);

template <typename Options>
void resolve_paths(Options&) {}

}  // namespace strata::apps
