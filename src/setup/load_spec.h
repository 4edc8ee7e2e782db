// SPDX-License-Identifier: Apache-2.0
// LoadSpec: what the options of a command that runs a model mean, read once: its config.json too,
// which no other place of the command reads.
#pragma once
#include <cstdint>
#include <string>

#include "base/model_texts.h"
#include "engine/plan/run_spec.h"

namespace strata::apps {

// What the options of every command that runs a model hold of it.
struct EngineSetup {
  std::string model;               // Hugging Face directory
  std::string dtype = "auto";      // auto, bf16, f32
  std::string weights = "auto";    // auto, narrow, bf16: of those in 4 to 8 bits
  bool load_in_4bit = false;       // full types are quantised to nf4
  std::string recompute = "none";  // none, full, a preset or custom:TAG=keep,...
  std::string device = "cpu";
  std::string offload = {};  // folder of what is in files; empty: that of temporary files
  int threads = 0;           // 0: all cores
  bool strict_config = false;
  int64_t context = 0;  // positions that a sequence may have; 0: as many as there are
  int64_t longest = 0;  // positions of the longest sequence that is planned for; 0: nobody knows
  model::UseMtp mtp = model::UseMtp::kNever;  // of the layer of multi-token prediction
};

// A RunSpec, and where its model's files are.
struct LoadSpec : engine::RunSpec {
  std::string dir;    // or file; empty where there is a config alone
  std::string where;  // of the config, for messages
  ModelTexts texts = ModelTexts(std::string());
};

// Error for any text that is no such value.
LoadSpec read_spec(const EngineSetup& setup);
LoadSpec read_spec(const EngineSetup& setup, const ModelTexts& texts);
// The spec with tables of RoPE for sequences of up to `longest` positions.
LoadSpec planned_for(LoadSpec spec, int64_t longest);
// The spec of a command that plans alone: a config will do (setup/config_source.h).
LoadSpec read_plan_spec(const EngineSetup& setup);

// "f32", "bf16", or "auto": bf16 when the checkpoint is bf16 or f16, else f32.
DType parse_dtype(const std::string& text, const model::ModelConfig& config);
// "auto", "narrow" or "bf16": what becomes of weights that a model has in 4 to 8 bits.
model::KeepWeights parse_weights(const std::string& text);
// Where all parameters train, which they do not in 4 to 8 bits: kAuto is kBf16, and kNarrow an
// Error.
model::KeepWeights resolve_weights_for_full_training(model::KeepWeights weights);
// Resolved for training with the method "full"; else as they are.
model::KeepWeights usable_weights(model::KeepWeights weights, const std::string& method);
// Error where all parameters would train, and the base be in 4 bits.
void check_method_in_4bit(bool load_in_4bit, const std::string& method);
// "none", "full", a preset's name, or "custom:" and TAG=keep (or TAG alone), TAG=offload and
// TAG=recompute with commas; tags that it does not name are recomputed.
engine::RecomputeChoice parse_recompute(const std::string& text);
// Only "cpu" is built; anything else is an Error{kUnsupported}.
void check_device(const std::string& device);

}  // namespace strata::apps
