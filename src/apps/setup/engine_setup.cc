// SPDX-License-Identifier: Apache-2.0
#include "apps/setup/engine_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "apps/setup/backend.h"
#include "apps/setup/config_source.h"
#include "apps/setup/model_files.h"
#include "backend/file_memory.h"
#include "base/env.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process_memory.h"
#include "checkpoint/gguf/gguf_model.h"
#include "engine/plan/recompute_plan.h"
#include "model/weights/narrow_forms.h"
#include "model/weights/tensor_names.h"
#include "server/options/options.h"

namespace strata::apps {

DType parse_dtype(const std::string& text, const model::ModelConfig& config) {
  if (text == "f32") return DType::kF32;
  if (text == "bf16") return DType::kBF16;
  if (text == "auto") {
    return config.dtype.value_or(DType::kF32) == DType::kF32 ? DType::kF32 : DType::kBF16;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--dtype: got '{}', want f32, bf16 or auto", text));
}

model::KeepWeights parse_weights(const std::string& text) {
  if (text == "auto") return model::KeepWeights::kAuto;
  if (text == "narrow") return model::KeepWeights::kNarrow;
  if (text == "bf16") return model::KeepWeights::kBf16;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--weights: got '{}', want auto, narrow or bf16", text));
}

std::string usable_weights(const std::string& weights, const std::string& method) {
  if (method != "full" || parse_weights(weights) == model::KeepWeights::kBf16) return weights;
  if (weights == "auto") return "bf16";
  throw Error(ErrorCode::kUnsupported,
              "--weights narrow and --method full: weights in 4 or 8 bits stay as they are; train "
              "an adapter over them (--method lora), or dequantise them (--weights bf16)");
}

namespace {

constexpr std::string_view kCustom = "custom:";
// MaxText's name for a stage's input, which is always kept: a custom policy may name it alone.
constexpr std::string_view kIterationInputTag = "iteration_input";

[[noreturn]] void refuse_recompute(const std::string& text) {
  std::string names = "none, full";
  for (const model::RecomputePreset& preset : model::recompute_presets()) {
    names += fmt::format(", {}", preset.name);
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("--recompute: got '{}', want {}, or custom:TAG=keep|offload|recompute,... "
                  "(TAG alone keeps)",
                  text, names));
}

struct CustomTags {
  std::vector<std::string> memory, files, recomputed;
};

CustomTags custom_tags(const std::string& text) {
  CustomTags tags;
  for (size_t begin = kCustom.size(); begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string tag = text.substr(begin, end - begin), where = "keep";
    if (const size_t sign = tag.find('='); sign != std::string::npos) {
      where = tag.substr(sign + 1);
      tag.resize(sign);
    }
    if (where != "keep" && where != "offload" && where != "recompute") {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--recompute: {}={}: want keep, offload or recompute", tag, where));
    }
    for (const auto* others : {&tags.memory, &tags.files, &tags.recomputed}) {
      if (std::find(others->begin(), others->end(), tag) == others->end()) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--recompute: the tag '{}' is named twice", tag));
    }
    (where == "keep"      ? tags.memory
     : where == "offload" ? tags.files
                          : tags.recomputed)
        .push_back(std::move(tag));
    begin = end + 1;
  }
  return tags;
}

// A tag that the model has no activation of would do nothing.
void check_recompute_tags(engine::Engine& engine, const std::string& text) {
  if (!text.starts_with(kCustom)) return;
  std::vector<std::string> known = {"lora_h", std::string(kIterationInputTag)};
  const engine::RecomputePlan plan = engine::describe_recompute(
      engine, {.pass_tokens = 64, .backward = true, .mtp = engine.config().use_mtp},
      model::Recompute::kNone);
  for (const engine::RecomputePlan::Row& row : plan.rows) {
    if (std::find(known.begin(), known.end(), row.tag) == known.end()) known.emplace_back(row.tag);
  }
  CustomTags tags = custom_tags(text);
  for (const auto* others : {&tags.files, &tags.recomputed})
    tags.memory.insert(tags.memory.end(), others->begin(), others->end());
  for (const std::string& tag : tags.memory) {
    if (std::find(known.begin(), known.end(), tag) != known.end()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--recompute: this model has no activation '{}'; it has {}", tag,
                            fmt::join(known, ", ")));
  }
}

}  // namespace

model::Recompute parse_recompute(const std::string& text) {
  if (text == "none") return model::Recompute::kNone;
  if (text == "full") return model::Recompute::kFull;
  for (const model::RecomputePreset& preset : model::recompute_presets()) {
    if (preset.name == text) return preset.value();
  }
  if (!text.starts_with(kCustom)) refuse_recompute(text);
  const CustomTags tags = custom_tags(text);
  return model::Recompute::keeping_in(tags.memory, tags.files);
}

bool keeps_layer_inputs(const std::string& recompute) {
  if (!recompute.starts_with(kCustom)) return true;
  const std::vector<std::string> tags = custom_tags(recompute).memory;
  return std::find(tags.begin(), tags.end(), model::kLayerInputTag) != tags.end();
}

std::string offload_folder(const std::string& named) {
  return named.empty() ? env_temporary_folder() : named;
}

void check_offload_folder(const std::string& named) {
  const FileAllocator files(offload_folder(named));
}

void check_kept(const std::string& memory, const std::string& recompute,
                const std::string& offload) {
  const bool offloads = parse_recompute(recompute).offloads_any();
  // A folder that will not do is refused now, and not by the first pass.
  if (!offload.empty() || offloads) check_offload_folder(offload);
  if (!memory.empty() && recompute != "none") {
    throw Error(ErrorCode::kInvalidArgument,
                "--memory and --recompute: give one; --memory chooses what is kept");
  }
  if (!offload.empty() && memory.empty() && !offloads) {
    throw Error(ErrorCode::kInvalidArgument,
                "--offload: the folder of what --memory does not hold, or --recompute offloads; "
                "give one of them");
  }
}

std::string usable_offload_folder(const std::string& named) {
  if (!named.empty()) return FileAllocator(named).folder();
  const std::string temporary = env_temporary_folder();
  return FileAllocator::fault(temporary).empty() ? temporary : "";
}

int64_t file_space(const std::string& named, const std::string& memory) {
  // Who has changed more of files than a fifth of the memory waits until it is written
  // (vm.dirty_ratio of https://docs.kernel.org/admin-guide/sysctl/vm.html).
  constexpr int64_t kChangedShare = 5;
  if (!named.empty()) return INT64_MAX;
  const std::string folder = usable_offload_folder(named);
  if (folder.empty()) return 0;
  const int64_t budget = memory.empty() ? 0 : server::parse_size("memory", memory);
  const int64_t space = (usable_memory() - budget) / kChangedShare;
  return std::clamp<int64_t>(space, 0, FileAllocator::free_bytes(folder) / 2);
}

std::vector<std::string> split_commas(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void check_device(const std::string& device) {
  if (device == "cpu") return;
  if (device == "cuda") {
    throw Error(ErrorCode::kUnsupported,
                "--device cuda: this build has no CUDA backend; use --device cpu");
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("--device: got '{}', want cpu", device));
}

int64_t draft_tokens(const std::string& speculate, int64_t tokens) {
  if (speculate == "mtp") return tokens;
  if (tokens > 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--draft-tokens: got {} without --speculate mtp, which makes drafts", tokens));
  }
  return 0;
}

bool uses_mtp(const EngineSetup& setup) {
  if (setup.mtp != model::UseMtp::kIfThere) return setup.mtp == model::UseMtp::kAlways;
  const model::ParsedConfig parsed = model::load_config(setup.model, setup.strict_config);
  return model::uses_mtp(*open_checkpoint(setup.model), parsed.config, setup.mtp);
}

std::unique_ptr<engine::Engine> make_planning_engine(const EngineSetup& setup, int64_t draft_tokens,
                                                     std::optional<model::LayerRange> part) {
  check_device(setup.device);
  const engine::EngineOptions options = {.recompute = parse_recompute(setup.recompute),
                                         .draft_tokens = draft_tokens,
                                         .offload = setup.offload};
  const ConfigSource source = find_config("model", setup.model);
  model::ParsedConfig parsed = model::parse_config(source.json, source.where, setup.strict_config);
  const DType dtype = parse_dtype(setup.dtype, parsed.config);
  // A plan wants a model's config alone, but looks at its weights where they are there.
  if (const auto weights = find_weights(source.dir)) model::untie_stored_head(*weights, parsed);
  auto backend = make_backend(setup.threads);
  model::LoadedModel model;
  model.dir = source.dir;
  model.config = std::move(parsed.config);
  // What a config has, the checkpoint may lack: without one to look at, only what is demanded.
  model.config.use_mtp = setup.mtp == model::UseMtp::kAlways;
  if (model.config.use_mtp && !model.config.mtp_layer) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: no layer of multi-token prediction, or none that is known: that "
                            "of DeepSeek-V4 with a num_nextn_predict_layers of 1 is",
                            source.where));
  }
  model::WeightForms forms;
  if (const auto weights = find_weights(has_gguf(setup.model) ? setup.model : source.dir)) {
    model::KeptForms kept =
        model::forms_to_keep(*weights, *backend, model.config, dtype, parse_weights(setup.weights),
                             model::NarrowLook::kScales, part);
    if (!kept.faults.empty()) model.warnings.push_back(kept.warning());
    forms = std::move(kept.forms);
  } else if (setup.weights == "narrow") {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--weights narrow: {} has no weights next to it, which could be kept "
                            "in 4 or 8 bits",
                            source.where));
  }
  model.weights = std::make_unique<model::ModelWeights>(*backend, model.config, dtype, nullptr,
                                                        part, std::move(forms));
  auto engine = std::make_unique<engine::Engine>(std::move(backend), std::move(model), options);
  if (!part) check_recompute_tags(*engine, setup.recompute);
  return engine;
}

std::unique_ptr<engine::Engine> make_engine(const EngineSetup& setup,
                                            engine::EngineOptions options) {
  check_device(setup.device);
  options.recompute = parse_recompute(setup.recompute);
  options.threads = setup.threads;
  options.offload = setup.offload;
  if (setup.threads < 0 || setup.threads > 4096) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--threads: got {}, want 0 (all cores) to 4096", setup.threads));
  }
  const model::ParsedConfig parsed = model::load_config(setup.model, setup.strict_config);
  const DType dtype = parse_dtype(setup.dtype, parsed.config);
  auto backend = make_backend(setup.threads);
  model::LoadedModel model =
      model::load_model(*backend, setup.model,
                        {.compute_dtype = dtype,
                         .strict_config = setup.strict_config,
                         .mtp = setup.mtp,
                         .offload = setup.weights_in_files ? offload_folder(setup.offload) : "",
                         .keep = parse_weights(setup.weights)});
  for (const std::string& warning : model.warnings) log(LogLevel::kWarning, warning);
  if (!model.config.use_mtp) options.draft_tokens = 0;
  auto engine = std::make_unique<engine::Engine>(std::move(backend), std::move(model), options);
  check_recompute_tags(*engine, setup.recompute);
  return engine;
}

}  // namespace strata::apps
