// SPDX-License-Identifier: Apache-2.0
// An adapter's checkpoint: PEFT files and, next to them, optimizer.safetensors with the AdamW
// moments and the step count. Reading is strict: the files must hold exactly the adapter's modules,
// with its ranks. Engine thread only, but for what reads and writes files.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace strata::engine {

// What a checkpoint holds: weights and, or empty, moments. A copy of its own, so it may be written
// on any thread while the adapter it came from trains on.
struct AdapterCopy {
  std::shared_ptr<const model::LoraAdapter> weights = {};
  std::vector<float> first_moments = {}, second_moments = {};
  int64_t step = 0;
};
// The adapter must train (enable_training).
AdapterCopy copy_state(Engine& engine, const model::LoraAdapter& adapter);
// The same of an adapter of which stages have the parts; without moments if not `moments`, when it
// need not train. `backend`: of the first stage, or one that breaks in on that.
AdapterCopy merge_adapter_parts(Backend& backend, Engine& first,
                                std::span<const model::LoraAdapter* const> parts, bool moments);
// Memory that the copy takes.
int64_t copy_bytes(const AdapterCopy& copy);
// Bytes of the files written.
int64_t write_adapter_state(const AdapterCopy& copy, const std::string& dir,
                            const std::string& base_model_name,
                            const std::map<std::string, std::string>& metadata = {});
// The weights in the form that other programs of the Tinker service read (model/adapter/export.h).
int64_t export_adapter_files(const model::LoraAdapter& adapter, const std::string& dir,
                             const std::string& base_model_name,
                             const std::map<std::string, std::string>& metadata = {});
// Any thread: what a checkpoint holds of an adapter with exactly these modules, with the moments if
// `optimizer`; with `whole` of all of them, whatever part of the model the engine has. Throws Error
// when anything does not fit.
AdapterCopy read_adapter_state(Engine& engine, const std::vector<model::LoraModuleSpec>& specs,
                               const std::string& dir, bool optimizer, bool whole = false);
// Each stage's part of it.
std::vector<AdapterCopy> read_adapter_parts(std::span<Engine* const> stages,
                                            const std::vector<model::LoraModuleSpec>& specs,
                                            const std::string& dir, bool optimizer);
// Replaces weights, and moments and step count by the copy's or by zero. Accumulated gradients are
// dropped. `backend` may be one that breaks in on the adapter's.
void restore(Backend& backend, const AdapterCopy& copy, model::LoraAdapter& adapter);

// A new adapter with the same modules and weights, which does not train.
std::unique_ptr<model::LoraAdapter> copy_adapter(Engine& engine, const model::LoraAdapter& from);
std::vector<model::LoraModuleSpec> specs_of(const model::LoraAdapter& adapter);

// Memory that an adapter of these modules takes, with or without gradients and moments.
int64_t adapter_bytes(const Engine& engine, const std::vector<model::LoraModuleSpec>& specs,
                      bool trains);

}  // namespace strata::engine
