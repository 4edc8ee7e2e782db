// SPDX-License-Identifier: Apache-2.0
// What every command that runs a model shares: folders of files, a loaded engine, one that plans.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "setup/load_spec.h"

namespace strata::apps {

// The folder of files without names: the one that was named, else that of temporary files.
std::string offload_folder(const std::string& named);
// Error{kInvalidArgument} where nothing can be offloaded to it.
void check_offload_folder(const std::string& named);
// Muon steps all parameters alone. Error{kInvalidArgument} otherwise.
void check_optimizer(const std::string& optimizer, const std::string& method);
// What training keeps is said by --memory or by --recompute, and --offload serves what they put
// into files. Error{kInvalidArgument} otherwise.
void check_memory_options(const std::string& memory, const std::string& recompute,
                          const std::string& offload);
// A server's folder: empty where none was named and that of temporary files is held in memory.
// Error{kInvalidArgument} where the named one is.
std::string find_usable_offload_folder(const std::string& named);
// An engine of a model's config alone, which can plan and cannot run, since its weights are zeroes
// that take no memory. With `draft_tokens` one that samples with drafts, for which the spec has the
// layer of multi-token prediction. With `part` of a stage, which has so many threads.
std::unique_ptr<engine::Engine> make_planning_engine(const LoadSpec& spec, int64_t draft_tokens = 0,
                                                     std::optional<model::LayerRange> part = {},
                                                     int threads = 0);
// EngineOptions::draft_tokens of --speculate and --draft-tokens; Error where the second is for
// nothing.
int64_t resolve_draft_tokens(const std::string& speculate, int64_t tokens);
// Whether a checkpoint's layer of multi-token prediction takes part; an Error where it is demanded
// and not there.
bool resolve_use_mtp(const LoadSpec& spec);

// Whether what a model's loading warns of goes to the log.
enum class Warnings : uint8_t { kNone, kTold };

// Where frozen weights go: a memory of their own, one that processes have together, which may hold
// them already, or a file of the spec's folder.
struct WeightPlace {
  std::unique_ptr<SharedMemory> shared = nullptr;
  bool in_file = false;
};

// Loads the model, or a stage of it, as the options say.
std::unique_ptr<engine::Engine> load_engine(std::unique_ptr<Backend> backend, const LoadSpec& spec,
                                            engine::EngineOptions options,
                                            std::optional<model::LayerRange> part = {},
                                            Warnings tell = Warnings::kTold,
                                            WeightPlace place = {});
// Loads the model, whose recompute (or that given), folder and threads are the spec's.
std::unique_ptr<engine::Engine> load_engine(const LoadSpec& spec,
                                            engine::EngineOptions options = {});
std::unique_ptr<engine::Engine> load_engine(const LoadSpec& spec, engine::EngineOptions options,
                                            const engine::RecomputeChoice& recompute,
                                            WeightPlace place = {});

}  // namespace strata::apps
