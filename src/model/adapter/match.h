// SPDX-License-Identifier: Apache-2.0
// Which module of an adapter each module of a PEFT file is. Any thread.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/peft.h"
#include "model/adapter/fused.h"
#include "model/adapter/lora.h"
#include "model/weights/load.h"

namespace strata::model {

// One module of the adapter and the modules of the file that make it up: one, or one an expert.
struct MatchedModule {
  LoraModuleSpec spec;
  ExpertForm form = ExpertForm::kPerExpert;
  std::vector<const PeftModule*> sources;
  std::optional<FusedPart> part = {};  // of the only source, which is then fused
};

// Faults are added: modules that the model lacks, wrong shapes, experts that are missing or differ,
// what is adapted twice.
std::vector<MatchedModule> match_modules(const LoadedModel& model, const PeftAdapter& peft,
                                         std::vector<std::string>& faults);

// gate and up of experts have either an A each or one together.
void check_gate_up_pairs(const LayerTable& layers, const std::vector<MatchedModule>& matched,
                         std::vector<std::string>& faults);

// The modules of a text part are "model.language_model." here; older files say
// "language_model.model.", and those made on the text model alone "model.".
// Modules that transformers 4 called otherwise have their names of today.
std::string canonical_path(const LayerTable& layers, const std::string& name);

bool is_of_mtp(const ModelConfig& config, const PeftModule& module);

}  // namespace strata::model
