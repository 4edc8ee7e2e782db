// SPDX-License-Identifier: Apache-2.0
// What a command's options name, as paths: models and adapters, by what the user typed
// (apps/setup/model_path.h). Before a command runs; options of others stay as they are.
#pragma once
#include "apps/options.h"
#include "server/options/options.h"

namespace strata::apps {

void find_models(TrainOptions& o);
void find_models(PlanOptions& o);
void find_models(DataOptions& o);
void find_models(EvalOptions& o);
void find_models(GenerateOptions& o);
void find_models(ChatOptions& o);
void find_models(ProbeOptions& o);
void find_models(InspectOptions& o);
void find_models(InitOptions& o);
void find_models(MergeOptions& o);
void find_models(ConvertOptions& o);
void find_models(TokenizeOptions& o);
void find_models(BenchOptions& o);
// Of NAME=DIR. A model of the hub has its name there as tokenizer_id where none was given.
void find_models(server::ServeOptions& o);

template <typename Options>
void find_models(Options&) {}

}  // namespace strata::apps
