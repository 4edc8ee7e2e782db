// SPDX-License-Identifier: Apache-2.0
// What every command that runs a model shares: option texts to values, a backend, a loaded engine.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace strata::apps {

// "f32", "bf16", or "auto": bf16 when the checkpoint is bf16 or f16, else f32.
DType parse_dtype(const std::string& text, const model::ModelConfig& config);
// "auto", "narrow" or "bf16": what becomes of weights that a model has in 4 or 8 bits.
model::KeepWeights parse_weights(const std::string& text);
// Of a run that trains by `method`: all parameters do not train in 4 or 8 bits, so that with "full"
// "auto" is bf16 and "narrow" an Error.
std::string usable_weights(const std::string& weights, const std::string& method);
// "none", "full", a preset's name, or "custom:" and TAG=keep (or TAG alone), TAG=offload and
// TAG=recompute with commas; tags that it does not name are recomputed.
model::Recompute parse_recompute(const std::string& text);
// Whether the policy keeps the layers' inputs where a stage is recomputed as one: all do but a
// custom one that does not name decoder_layer_input.
bool keeps_layer_inputs(const std::string& recompute);
// The folder of files without names: the one that was named, else that of temporary files.
std::string offload_folder(const std::string& named);
// Error{kInvalidArgument} where nothing can be offloaded to it.
void check_offload_folder(const std::string& named);
// What training keeps is said by --memory or by --recompute, and --offload serves what they put
// into files. Error{kInvalidArgument} otherwise.
void check_kept(const std::string& memory, const std::string& recompute,
                const std::string& offload);
// The same of a server: empty where none was named and that of temporary files is held in memory.
// Error{kInvalidArgument} where the named one is.
std::string usable_offload_folder(const std::string& named);
// Bytes of activations that --memory may have in files: any number where a folder was named, else
// what the system keeps of files without holding up who writes them, besides so much memory, and
// half of what is left on the disk of temporary files at most; none where that folder will not do.
int64_t file_space(const std::string& named, const std::string& memory);
// The parts of a list with commas that are not empty.
std::vector<std::string> split_commas(const std::string& list);
// Only "cpu" is built; anything else is an Error{kUnsupported}.
void check_device(const std::string& device);

// What the options of every command that runs a model hold of it.
struct EngineSetup {
  std::string model;               // Hugging Face directory
  std::string dtype = "auto";      // auto, bf16, f32
  std::string weights = "auto";    // auto, narrow, bf16: of those in 4 or 8 bits
  std::string recompute = "none";  // none, full, a preset or custom:TAG=keep,...
  std::string device = "cpu";
  std::string offload = {};       // folder of what is in files; empty: that of temporary files
  bool weights_in_files = false;  // the frozen weights are
  int threads = 0;                // 0: all cores
  bool strict_config = false;
  model::UseMtp mtp = model::UseMtp::kNever;  // of the layer of multi-token prediction
};

// Of a model's config alone (apps/setup/config_source.h): an engine that can plan and cannot run,
// since its weights are zeroes that take no memory. With `draft_tokens` one that samples with
// drafts, for which the setup has the layer of multi-token prediction. With `part` of a stage.
std::unique_ptr<engine::Engine> make_planning_engine(const EngineSetup& setup,
                                                     int64_t draft_tokens = 0,
                                                     std::optional<model::LayerRange> part = {});
// EngineOptions::draft_tokens of --speculate and --draft-tokens; Error where the second is for
// nothing.
int64_t draft_tokens(const std::string& speculate, int64_t tokens);
// Whether a checkpoint's layer of multi-token prediction takes part.
bool uses_mtp(const EngineSetup& setup);

// Loads the model; its warnings go to the log.
std::unique_ptr<engine::Engine> make_engine(const EngineSetup& setup,
                                            engine::EngineOptions options = {});

}  // namespace strata::apps
