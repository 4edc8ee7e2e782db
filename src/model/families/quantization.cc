// SPDX-License-Identifier: Apache-2.0
// Sources of the forms: HF utils/quantization_config.py; compressed-tensors' quant_config.py and
// quant_scheme.py; ModelOpt's convert_hf_config.py.
#include "model/families/quantization.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace strata::model {
namespace {

constexpr std::string_view kMixedFormat = "mixed-precision";
constexpr std::array<std::string_view, 3> kFormats = {"float-quantized", "naive-quantized",
                                                      "nvfp4-pack-quantized"};
constexpr std::string_view kMixedAlgorithm = "MIXED_PRECISION";
constexpr std::array<std::string_view, 2> kAlgorithms = {"FP8", "NVFP4"};
constexpr std::string_view kSupportedWeights =
    "FP8 (floats of 8 bits by tensor, row or block of 128 x 128) and NVFP4 (floats of 4 bits in "
    "groups of 16)";

template <typename List>
bool contains(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

[[noreturn]] void refuse(const ConfigObject& object, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", object.where(), what));
}

// Absent, or one of a list.
bool is_absent_or(const ConfigObject& object, std::string_view key,
                  std::initializer_list<std::string_view> values) {
  return !object.has(key) || contains(values, object.json(key));
}

// Whether the weights of a group, or of a layer, are of a kind that is read.
bool are_known_weights(const ConfigObject& weights) {
  if (weights.text("type", "float") != "float" || !weights.boolean("symmetric", true)) return false;
  const int64_t bits = weights.integer("num_bits", 0);
  if (bits == 4) {
    return weights.integer("group_size", 0) == 16 &&
           is_absent_or(weights, "strategy", {"\"tensor_group\""});
  }
  return bits == 8 && is_absent_or(weights, "group_size", {}) &&
         is_absent_or(weights, "strategy", {"\"tensor\"", "\"channel\"", "\"block\""}) &&
         is_absent_or(weights, "block_structure", {"[128,128]"});
}

// Groups without weights are of activations alone, such as those of a KV cache.
void check_groups(const ConfigObject& quantization, const std::string& format) {
  const auto groups = quantization.object("config_groups");
  if (!groups) return;
  for (const std::string& name : groups->keys()) {
    const ConfigObject group = *groups->object(name);
    const auto weights = group.object("weights");
    if (!weights) continue;
    const std::string own = group.text("format", format);
    const bool is_known_format = own == kMixedFormat || own.empty() || contains(kFormats, own);
    if (is_known_format && are_known_weights(*weights)) continue;
    refuse(*groups, fmt::format("'{}' is not supported: format '{}', weights {}; supported are {}",
                                name, own, group.json("weights"), kSupportedWeights));
  }
}

// What changes the matrices themselves, besides their types.
void check_transforms(const ConfigObject& quantization) {
  const auto transforms = quantization.object("transform_config");
  if (transforms && !transforms->keys().empty()) {
    refuse(quantization, fmt::format("transform_config is not supported "
                                     "(got {}): rotations of activations at run time",
                                     quantization.json("transform_config")));
  }
  const auto sparsity = quantization.object("sparsity_config");
  if (sparsity && sparsity->text("format", "dense") != "dense") {
    refuse(quantization, fmt::format("sparsity_config: format '{}' is not "
                                     "supported, want dense",
                                     sparsity->text("format")));
  }
}

bool is_compressed_tensors(const ConfigObject& quantization) {
  const std::string format = quantization.text("format", "");
  if (!contains(kFormats, format) && format != kMixedFormat) return false;
  check_groups(quantization, format);
  check_transforms(quantization);
  return true;
}

// Whether all of a model's weights, and those of each layer that has a type of its own, are known.
bool is_modelopt(const ConfigObject& quantization) {
  const std::string algorithm = quantization.text("quant_algo", "");
  if (!algorithm.empty() && algorithm != kMixedAlgorithm && !contains(kAlgorithms, algorithm)) {
    return false;
  }
  const auto layers = quantization.object("quantized_layers");
  if (!layers) return true;
  for (const std::string& name : layers->keys()) {
    const std::string own = layers->object(name)->text("quant_algo", "");
    if (own.empty() || contains(kAlgorithms, own)) continue;
    refuse(*layers, fmt::format("'{}': quant_algo '{}' is not supported; supported are {}", name,
                                own, fmt::join(kAlgorithms, ", ")));
  }
  return true;
}

bool is_known_method(const ConfigObject& quantization) {
  const std::string method = quantization.text("quant_method", "");
  if (method == "fp8" || method == "fbgemm_fp8") return quantization.text("fmt", "e4m3") == "e4m3";
  if (method == "mxfp4") return true;
  if (method == "bitsandbytes") return quantization.boolean("load_in_4bit", false);
  if (method == "compressed-tensors") return is_compressed_tensors(quantization);
  if (method != "modelopt" || !is_modelopt(quantization)) return false;
  check_groups(quantization, "");
  return true;
}

}  // namespace

void check_quantization(const ConfigObject& object) {
  const auto quantization = object.object("quantization_config");
  if (!quantization || is_known_method(*quantization)) return;
  refuse(object,
         fmt::format("quantization_config: quant_method '{}' is not supported in this form (got "
                     "{}); supported are fp8 with fmt e4m3, fbgemm_fp8, mxfp4, bitsandbytes with "
                     "load_in_4bit, compressed-tensors with a format of {} or {}, and modelopt "
                     "with a quant_algo of {} or {}. Weights of other methods may be had in GGUF",
                     quantization->text("quant_method", ""), object.json("quantization_config"),
                     fmt::join(kFormats, ", "), kMixedFormat, fmt::join(kAlgorithms, ", "),
                     kMixedAlgorithm));
}

void check_modelopt_file(const std::string& text, const std::string& where) {
  const auto quantization = ConfigObject::parse(text, where).object("quantization");
  if (!quantization || is_modelopt(*quantization)) return;
  refuse(*quantization, fmt::format("quant_algo '{}' is not supported; supported are {} and {}",
                                    quantization->text("quant_algo", ""),
                                    fmt::join(kAlgorithms, ", "), kMixedAlgorithm));
}

}  // namespace strata::model
