// What every command that runs a model shares: option texts to values, a backend, a loaded engine.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace strata::apps {

// "f32", "bf16", or "auto": bf16 when the checkpoint is bf16 or f16, else f32.
DType parse_dtype(const std::string& text, const model::ModelConfig& config);
// "none", "full", a preset's name, or "custom:" and the tags that are kept, with commas.
model::Recompute parse_recompute(const std::string& text);
// The parts of a list with commas that are not empty.
std::vector<std::string> split_commas(const std::string& list);
// Only "cpu" is built; anything else is an Error{kUnsupported}.
void check_device(const std::string& device);

// What the options of every command that runs a model hold of it.
struct EngineSetup {
  std::string model;               // Hugging Face directory
  std::string dtype = "auto";      // auto, bf16, f32
  std::string recompute = "none";  // none, full, a preset or custom:TAG,TAG
  std::string device = "cpu";
  std::string offload = {};  // a folder: the weights lie in a file there (train: if they must)
  int threads = 0;           // 0: all cores
  bool strict_config = false;
  model::UseMtp mtp = model::UseMtp::kNever;  // of the layer of multi-token prediction
};

// Of a model's config alone (apps/config_source.h): an engine that can plan and cannot run, since
// its weights are zeroes that take no memory.
std::unique_ptr<engine::Engine> make_planning_engine(const EngineSetup& setup);

// Loads the model; its warnings go to the log.
std::unique_ptr<engine::Engine> make_engine(const EngineSetup& setup,
                                            engine::EngineOptions options = {});

}  // namespace strata::apps
