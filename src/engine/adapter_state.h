// An adapter's checkpoint: PEFT files and, beside them, optimizer.safetensors with the AdamW
// moments and the step count. Reading is strict: the files must hold exactly the adapter's modules,
// with its ranks. Engine thread only.
#pragma once
#include <string>

#include "engine/engine.h"

namespace strata::engine {

// Bytes of the files written. The adapter must train (enable_training).
int64_t save_adapter_state(const Engine& engine, const model::LoraAdapter& adapter,
                           const std::string& dir, const std::string& base_model_name,
                           bool optimizer);
// The weights in the form that other programs of the Tinker service read (model/adapter_export.h).
int64_t export_adapter_files(const model::LoraAdapter& adapter, const std::string& dir,
                             const std::string& base_model_name);
// Replaces weights, and moments and step count by the saved ones or by zero. Accumulated gradients
// are dropped. Throws Error, and leaves the adapter as it was, when anything does not fit.
void load_adapter_state(Engine& engine, model::LoraAdapter& adapter, const std::string& dir,
                        bool optimizer);

// A new adapter with the same modules and weights, which does not train.
std::unique_ptr<model::LoraAdapter> copy_adapter(Engine& engine, const model::LoraAdapter& from);

// Memory that an adapter of these modules takes, with or without gradients and moments.
int64_t adapter_bytes(const Engine& engine, const std::vector<model::LoraModuleSpec>& specs,
                      bool trains);

}  // namespace strata::engine
