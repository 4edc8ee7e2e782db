// SPDX-License-Identifier: Apache-2.0
#include "model/weights/load_in_4bit.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/nf4.h"
#include "checkpoint/nf4_source.h"
#include "model/weights/load.h"
#include "model/weights/narrow_forms.h"
#include "model/weights/no_layers.h"

namespace strata::model {
namespace {

void check_has_no_experts(const ModelWeights& names, const std::string& where) {
  const auto is_expert = [](const Parameter& parameter) { return parameter.expert >= 0; };
  if (std::ranges::none_of(names.table(), is_expert)) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--load-in-4bit: {}: experts are no linear layers in transformers, and "
                          "bitsandbytes has no form for them; strata convert --to gguf --type "
                          "q4_k_m makes a base in few bits of it",
                          where));
}

void check_is_in_full_types(const CheckpointSource& source) {
  if (count_quantised_bytes(source).stored == 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--load-in-4bit: {} is in 4 to 8 bits already and is kept so; leave out "
                          "the option",
                          source.path()));
}

}  // namespace

bool is_linear_of_layer(const Parameter& parameter) {
  return parameter.row != nullptr && parameter.is_matrix() && !parameter.row->lora.path.empty();
}

std::unique_ptr<CheckpointSource> quantise_in_4bit(std::unique_ptr<CheckpointSource> source,
                                                   const Backend& backend,
                                                   const ModelConfig& config) {
  check_is_in_full_types(*source);
  ModelWeights names(backend, config, DType::kBF16, nullptr, kNoLayers);
  check_has_no_experts(names, source->path());
  std::vector<std::string> ignored;
  const std::vector<std::string> faults = match_parameters(*source, names, ignored);
  if (!faults.empty()) fail_faults(source->path(), faults);
  std::set<std::string> quantised;
  for (const Parameter& parameter : names.table()) {
    if (is_linear_of_layer(parameter)) quantised.insert(parameter.name);
  }
  return std::make_unique<Nf4Source>(std::move(source), quantised);
}

WeightForms forms_in_4bit(const Backend& backend, const ModelConfig& config,
                          const std::string& where) {
  const ModelWeights names(backend, config, DType::kBF16, nullptr, kNoLayers);
  check_has_no_experts(names, where);
  WeightForms forms;
  for (const Parameter& parameter : names.table()) {
    if (is_linear_of_layer(parameter) && parameter.num_cols() % kNf4Block == 0)
      forms.emplace(form_name(config, parameter), NarrowForm::kNf4);
  }
  return forms;
}

}  // namespace strata::model
