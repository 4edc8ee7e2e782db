// SPDX-License-Identifier: Apache-2.0
#include "setup/weights_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string_view>

#include "base/files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "report/format.h"
#include "tensor/narrow.h"

namespace strata::apps {
namespace {

// Counts the matrices that are held here.
struct NarrowCounts {
  std::map<std::string_view, int64_t> kept;  // by their form; experts of a layer are one
  int64_t bytes = 0;                         // of those
  int64_t dequantised = 0;
};

bool is_narrow_in(const CheckpointSource* source, const model::Parameter& parameter) {
  const CheckpointTensor* tensor = source == nullptr ? nullptr : source->find(parameter.name);
  return tensor != nullptr && tensor->info.dtype_name != dtype_name(tensor->info.dtype);
}

NarrowCounts count_narrow_matrices(const model::ModelWeights& weights,
                                   const CheckpointSource* source) {
  NarrowCounts counts;
  for (const model::Parameter& parameter : weights.table()) {
    if (!parameter.held || !parameter.is_matrix()) continue;
    const bool is_counted = parameter.expert <= 0;
    if (parameter.panel.is_narrow()) {
      counts.bytes += parameter.panel.num_bytes();
      if (is_counted) ++counts.kept[narrow_layout(parameter.panel.form).name];
    } else if (is_counted && is_narrow_in(source, parameter)) {
      ++counts.dequantised;
    }
  }
  return counts;
}

}  // namespace

std::unique_ptr<CheckpointSource> find_weights(const std::string& path) {
  const bool there = !path.empty() && (is_gguf(path) || file_exists(path + "/model.safetensors") ||
                                       file_exists(path + "/model.safetensors.index.json"));
  return there ? open_checkpoint(path) : nullptr;
}

std::string dequantised_text(const CheckpointSource* source) {
  const NarrowBytes bytes = source == nullptr ? NarrowBytes() : count_quantised_bytes(*source);
  if (bytes.stored == 0) return {};
  return fmt::format("{} of weights in the file, {} in bf16 (twice that in f32)",
                     report::format_bytes(bytes.stored), report::format_bytes(bytes.dequantised));
}

std::string narrow_text(const model::ModelWeights& weights, const CheckpointSource* source) {
  const NarrowCounts counts = count_narrow_matrices(weights, source);
  if (counts.kept.empty()) return {};
  std::string text;
  for (const auto& [name, count] : counts.kept) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  }
  text += fmt::format(": {} of {}", report::format_bytes(counts.bytes),
                      report::format_bytes(weights.num_bytes()));
  return counts.dequantised == 0
             ? text
             : fmt::format("{}; {} dequantised to bf16", text, counts.dequantised);
}

void add_quantised_weights_row(const model::ModelWeights& weights, const CheckpointSource* source,
                               report::Table& table) {
  const std::string kept = narrow_text(weights, source);
  if (!kept.empty()) return table.add_row({"in 4 to 8 bits", kept});
  const std::string dequantised = dequantised_text(source);
  if (!dequantised.empty()) table.add_row({"dequantised", dequantised});
}

}  // namespace strata::apps
