// SPDX-License-Identifier: Apache-2.0
#include "setup/load_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/weights/load.h"
#include "setup/config_source.h"

namespace strata::apps {
namespace {

constexpr std::string_view kCustom = "custom:";

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

// Where `tag` goes, which none of them has yet.
void add_custom_tag(CustomTags& tags, std::string tag, const std::string& where) {
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
}

CustomTags parse_custom_tags(const std::string& text) {
  CustomTags tags;
  for (size_t begin = kCustom.size(); begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string tag = text.substr(begin, end - begin), where = "keep";
    if (const size_t sign = tag.find('='); sign != std::string::npos) {
      where = tag.substr(sign + 1);
      tag.resize(sign);
    }
    add_custom_tag(tags, std::move(tag), where);
    begin = end + 1;
  }
  return tags;
}

engine::RecomputeChoice parse_custom_recompute(const std::string& text) {
  CustomTags tags = parse_custom_tags(text);
  const auto has_inputs = [](const std::vector<std::string>& named) {
    return std::find(named.begin(), named.end(), model::kLayerInputTag) != named.end();
  };
  engine::RecomputeChoice choice = {
      .name = text,
      .policy = model::Recompute::with_offload(tags.memory, tags.files),
      .keeps_layer_inputs = has_inputs(tags.memory) || has_inputs(tags.files)};
  for (auto* named : {&tags.memory, &tags.files, &tags.recomputed})
    choice.tags.insert(choice.tags.end(), named->begin(), named->end());
  return choice;
}

// All but what the config says.
LoadSpec spec_without_config(const EngineSetup& setup) {
  check_device(setup.device);
  LoadSpec spec;
  spec.recompute = parse_recompute(setup.recompute);
  spec.mtp = setup.mtp;
  spec.offload = setup.offload;
  spec.threads = setup.threads;
  return spec;
}

// Products read weights in few bits as bf16.
void check_load_in_4bit(const EngineSetup& setup) {
  const char* const other = setup.dtype == "f32"      ? "--dtype f32"
                            : setup.weights == "bf16" ? "--weights bf16"
                                                      : nullptr;
  if (!setup.load_in_4bit || other == nullptr) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--load-in-4bit and {}: weights stay in 4 bits and products are in bf16; "
                          "give one",
                          other));
}

// Lets no sequence be longer than --context says.
void limit_context(int64_t context, const std::string& where, model::ModelConfig& config) {
  if (context == 0) return;
  if (context > config.max_position_embeddings) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--context: got {}, and {} has {} positions (max_position_embeddings)",
                            context, where, config.max_position_embeddings));
  }
  config.most_positions = std::min(config.most_positions, context);
}

LoadSpec with_config(LoadSpec spec, const EngineSetup& setup, model::ParsedConfig parsed) {
  check_load_in_4bit(setup);
  spec.load_in_4bit = setup.load_in_4bit;
  spec.dtype = setup.load_in_4bit ? DType::kBF16 : parse_dtype(setup.dtype, parsed.config);
  spec.weights = parse_weights(setup.weights);
  spec.parsed = std::move(parsed);
  spec = planned_for(std::move(spec), std::max(setup.context, setup.longest));
  limit_context(setup.context, spec.where, spec.parsed.config);
  return spec;
}

}  // namespace

LoadSpec planned_for(LoadSpec spec, int64_t longest) {
  model::plan_positions(spec.parsed.config, longest);
  return spec;
}

LoadSpec read_spec(const EngineSetup& setup) { return read_spec(setup, open_texts(setup.model)); }

LoadSpec read_spec(const EngineSetup& setup, const ModelTexts& texts) {
  LoadSpec spec = spec_without_config(setup);
  spec.dir = setup.model;
  spec.where = texts.where("config.json");
  spec.texts = texts;
  return with_config(std::move(spec), setup, model::read_config(texts, setup.strict_config));
}

LoadSpec read_plan_spec(const EngineSetup& setup) {
  LoadSpec spec = spec_without_config(setup);
  ConfigSource source = read_config_source("model", setup.model);
  model::ParsedConfig parsed = model::parse_config(source.json, source.where, setup.strict_config);
  spec.dir = std::move(source.dir);
  spec.where = std::move(source.where);
  spec.texts = std::move(source.texts);
  return with_config(std::move(spec), setup, std::move(parsed));
}

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

model::KeepWeights resolve_weights_for_full_training(model::KeepWeights weights) {
  if (weights != model::KeepWeights::kNarrow) return model::KeepWeights::kBf16;
  throw Error(ErrorCode::kUnsupported,
              "--weights narrow and --method full: weights in 4 to 8 bits stay as they are; train "
              "an adapter over them (--method lora), or dequantise them (--weights bf16)");
}

model::KeepWeights usable_weights(model::KeepWeights weights, const std::string& method) {
  return method == "full" ? resolve_weights_for_full_training(weights) : weights;
}

void check_method_in_4bit(bool load_in_4bit, const std::string& method) {
  if (!load_in_4bit || method != "full") return;
  throw Error(ErrorCode::kUnsupported,
              "--load-in-4bit and --method full: weights in 4 bits stay as they are; train an "
              "adapter over them (--method lora), or all parameters in full types");
}

engine::RecomputeChoice parse_recompute(const std::string& text) {
  if (text == "none") return {};
  if (text == "full") return {.name = text, .policy = model::Recompute::kFull};
  for (const model::RecomputePreset& preset : model::recompute_presets()) {
    if (preset.name == text) return {.name = text, .policy = preset.value()};
  }
  if (!text.starts_with(kCustom)) refuse_recompute(text);
  return parse_custom_recompute(text);
}

void check_device(const std::string& device) {
  if (device == "cpu") return;
  if (device == "cuda") {
    throw Error(ErrorCode::kUnsupported,
                "--device cuda: this build has no CUDA backend; use --device cpu");
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("--device: got '{}', want cpu", device));
}

}  // namespace strata::apps
