// SPDX-License-Identifier: Apache-2.0
// Adapters between PEFT directories and LoraAdapter. Engine thread only, but where it says more.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/peft.h"
#include "model/adapter/lora.h"
#include "model/adapter/match.h"
#include "model/adapter/specs.h"
#include "model/weights/load.h"

namespace strata::model {

// Whether a PEFT directory has modules of the layer of multi-token prediction, without which it
// cannot be loaded.
bool adapter_dir_has_mtp(const ModelConfig& config, const std::string& dir);

// The modules of a PEFT directory, as load_adapter makes them; its faults but for values. `model`
// may be one that can only plan.
std::vector<LoraModuleSpec> read_adapter_specs(const LoadedModel& model, const std::string& dir);

// Reads a PEFT directory into a new adapter. Modules that the model lacks, wrong shapes and copies
// of base weights that differ from the model's are refused by name, all together. With `whole` it
// has all modules, whatever part of the model is held; copies are compared with what is held.
std::unique_ptr<LoraAdapter> load_adapter(Backend& backend, const LoadedModel& model,
                                          const std::string& dir, bool whole = false);

// Any thread: the same, but that the panels are not refreshed (LoraAdapter::refresh), and that
// copies of base weights, which only the engine thread can compare, are refused.
std::unique_ptr<LoraAdapter> read_adapter_without_refresh(Backend& backend,
                                                          const LoadedModel& model,
                                                          const std::string& dir,
                                                          bool whole = false);

// A PEFT directory whose modules are read one at a time, each when it is asked for: whoever goes
// through them has memory for one. Its faults are those of load_adapter(), but for values.
class AdapterModules {
 public:
  // `model` outlives this.
  AdapterModules(Backend& backend, const LoadedModel& model, const std::string& dir);

  [[nodiscard]] const PeftAdapter& peft() const { return *peft_; }
  [[nodiscard]] const std::vector<MatchedModule>& modules() const { return modules_; }
  // An adapter that has one of them alone, its panels not refreshed.
  [[nodiscard]] std::unique_ptr<LoraAdapter> read_module(size_t module) const;

 private:
  Backend& backend_;
  const LoadedModel& model_;
  std::unique_ptr<PeftAdapter> peft_;  // `modules_` point into it
  std::vector<MatchedModule> modules_;
};

// The weights of a PEFT directory into an adapter that has exactly its modules, with their ranks.
// Error, before anything is written, that names what does not fit. Any thread.
void load_adapter_weights(const LoadedModel& model, const std::string& dir, LoraAdapter& adapter);

// Whether its scales are rslora's, alpha / sqrt(rank): one setting for all modules of a file. At
// rank 1 both agree.
bool uses_rslora(const LoraAdapter& adapter);

// Writes a PEFT directory, F32, without copies of base weights; `metadata` of its tensors' file.
void save_adapter(const LoraAdapter& adapter, const std::string& dir,
                  const std::string& base_model_name,
                  std::map<std::string, std::string> metadata = {});

}  // namespace strata::model
