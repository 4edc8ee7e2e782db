// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf/nvfp4_scales.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <span>

#include "base/error.h"

namespace strata {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::array<std::string_view, 3> kSuffixes = {".scale", ".weight.scale", ".input_scale"};
constexpr std::span<const std::string_view> kOfWeights = std::span(kSuffixes).first(2);

bool is_nvfp4(const GgufTensor& tensor) { return tensor.type->name == "NVFP4"; }

std::string scale_name(std::string_view weight, std::string_view suffix) {
  if (weight.ends_with(kWeight)) weight.remove_suffix(kWeight.size());
  return std::string(weight) + std::string(suffix);
}

}  // namespace

Nvfp4Scales::Nvfp4Scales(const GgufModel& model) : model_(model) {
  std::unordered_map<std::string_view, GgufModel::Tensor> scales;
  for (const GgufModel::Tensor& tensor : model.tensors()) {
    if (tensor.info->name.ends_with("scale")) scales.emplace(tensor.info->name, tensor);
  }
  for (const GgufModel::Tensor& tensor : model.tensors()) {
    if (!is_nvfp4(*tensor.info)) continue;
    for (const std::string_view suffix : kSuffixes) {
      std::string name = scale_name(tensor.info->name, suffix);
      const auto found = scales.find(name);
      if (found != scales.end()) by_name_.emplace(std::move(name), found->second);
    }
  }
}

bool Nvfp4Scales::is_scale(std::string_view name) const {
  return by_name_.contains(std::string(name));
}

const GgufModel::Tensor* Nvfp4Scales::find_scale(const GgufModel::Tensor& tensor) const {
  for (const std::string_view suffix : kOfWeights) {
    const auto found = by_name_.find(scale_name(tensor.info->name, suffix));
    if (found != by_name_.end()) return &found->second;
  }
  return nullptr;
}

bool Nvfp4Scales::has_scale(const GgufModel::Tensor& tensor) const {
  return find_scale(tensor) != nullptr;
}

float Nvfp4Scales::read_scale(const GgufModel::Tensor& tensor, int64_t expert) const {
  const GgufModel::Tensor* const scale = is_nvfp4(*tensor.info) ? find_scale(tensor) : nullptr;
  if (scale == nullptr) return 1.0f;
  const GgufTensor& info = *scale->info;
  const auto fail = [&](const std::string& what) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: tensor '{}': {}", model_.files()[scale->file].path(), info.name, what));
  };
  const int64_t count = tensor.info->dims.size() == 3 ? tensor.info->dims.front() : 1;
  if (info.type->name != "F32" || info.dims != std::vector{count}) {
    fail(fmt::format("{} [{}], want F32 [{}]: '{}' is [{}]", info.type->name,
                     fmt::join(info.dims, ", "), count, tensor.info->name,
                     fmt::join(tensor.info->dims, ", ")));
  }
  float value = 0.0f;
  model_.files()[scale->file].read_bytes(info, expert * int64_t{sizeof(value)},
                                         std::as_writable_bytes(std::span(&value, 1)));
  if (!std::isfinite(value))
    fail(fmt::format("element {} is {}, want a finite number", expert, value));
  return value;
}

}  // namespace strata
