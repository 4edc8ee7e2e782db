// SPDX-License-Identifier: Apache-2.0
#include "model/weights/narrow_forms.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/weights/no_layers.h"

namespace strata::model {
namespace {

NarrowForm narrow_form_of(const CheckpointSource& checkpoint, const Parameter& parameter) {
  if (!parameter.is_matrix() || parameter.buffer) return NarrowForm::kNone;
  const CheckpointTensor* tensor = checkpoint.find(parameter.name);
  return tensor == nullptr ? NarrowForm::kNone : checkpoint.narrow_form(*tensor);
}

// The form of a parameter; none, and a fault, where the form does not hold its values.
NarrowForm checked_form(const CheckpointSource& checkpoint, const Parameter& parameter,
                        NarrowLook look, std::vector<std::string>& faults) {
  const NarrowForm form = narrow_form_of(checkpoint, parameter);
  if (form == NarrowForm::kNone || look == NarrowLook::kHeader) return form;
  std::string fault = checkpoint.scan_for_unrepresentable_values(*checkpoint.find(parameter.name),
                                                                 look == NarrowLook::kCodes);
  if (fault.empty()) return form;
  faults.push_back(std::move(fault));
  return NarrowForm::kNone;
}

void rename_parameters(const CheckpointSource& checkpoint, ModelWeights& names) {
  std::vector<std::string> ignored;
  const std::vector<std::string> faults = match_parameters(checkpoint, names, ignored);
  if (!faults.empty()) fail_faults(checkpoint.path(), faults);
}

// Experts of a layer stay in few bits where all have the form of the first.
void drop_mixed_form(const std::string& first, NarrowForm form, WeightForms& forms) {
  const auto found = forms.find(first);
  if (found != forms.end() && found->second != form) forms.erase(found);
}

}  // namespace

std::string KeptForms::warning() const {
  if (faults.empty()) return {};
  return fmt::format("{}: {} tensor(s) with such values are dequantised to bf16", faults.front(),
                     faults.size());
}

std::string form_name(const ModelConfig& config, const Parameter& parameter) {
  if (parameter.row == nullptr) return parameter.name;
  return layer_tensor_name(config, parameter.layer, parameter.row->suffix,
                           std::max(0, parameter.expert));
}

KeptForms find_narrow_forms(const CheckpointSource& checkpoint, const Backend& backend,
                            const ModelConfig& config, NarrowLook look,
                            std::optional<LayerRange> part) {
  ModelWeights names(backend, config, DType::kBF16, nullptr, kNoLayers);
  std::vector<std::string> canonical;
  for (const Parameter& parameter : names.table())
    canonical.push_back(form_name(config, parameter));
  rename_parameters(checkpoint, names);
  KeptForms kept;
  const std::string* first = nullptr;  // the name of a layer's first expert
  for (size_t index = 0; index < canonical.size(); ++index) {
    const Parameter& parameter = names.table()[index];
    const bool elsewhere = part && parameter.layer >= 0 && !part->contains(parameter.layer);
    const NarrowForm form =
        checked_form(checkpoint, parameter, elsewhere ? NarrowLook::kHeader : look, kept.faults);
    if (parameter.expert > 0) {
      drop_mixed_form(*first, form, kept.forms);
      continue;
    }
    first = &canonical[index];
    if (form != NarrowForm::kNone) kept.forms.emplace(*first, form);
  }
  return kept;
}

namespace {

void load_narrow_rows(Backend& backend, const CheckpointSource& checkpoint, ModelWeights& weights,
                      size_t index, int64_t begin, int64_t rows) {
  const Parameter& parameter = weights.table()[index];
  const NarrowForm form = parameter.panel.form;
  const int64_t cols = parameter.num_cols();
  const Scratch::Mark mark(backend.scratch());
  auto* const data =
      static_cast<std::byte*>(backend.scratch().take(rows * narrow_layout(form).row_bytes(cols)));
  {
    const HostAccess access(backend.allocator());
    const int64_t row_bytes = narrow_layout(form).row_bytes(cols);
    for_each_stored_run(parameter, begin, begin + rows,
                        [&](int64_t first, int64_t at, int64_t count) {
                          checkpoint.read_quantised_rows(*checkpoint.find(parameter.name), at,
                                                         count, data + (first - begin) * row_bytes);
                        });
  }
  weights.write_narrow_rows(backend, index, begin,
                            {.form = form, .data = data, .rows = rows, .cols = cols});
}

}  // namespace

void load_narrow_parameter(Backend& backend, const CheckpointSource& checkpoint,
                           ModelWeights& weights, size_t index) {
  constexpr int64_t kSliceBytes = 32 << 20;
  const Parameter& parameter = weights.table()[index];
  const int64_t row_bytes = narrow_layout(parameter.panel.form).row_bytes(parameter.num_cols());
  const int64_t step = std::max<int64_t>(1, kSliceBytes / row_bytes);
  for (int64_t begin = 0; begin < parameter.num_rows(); begin += step) {
    const int64_t rows = std::min(parameter.num_rows() - begin, step);
    if (weights.keeps(index, begin, begin + rows)) {
      load_narrow_rows(backend, checkpoint, weights, index, begin, rows);
    }
  }
}

namespace {

[[noreturn]] void refuse_f32(const CheckpointSource& checkpoint) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: weights stay in 4 to 8 bits with --dtype bf16 alone; f32 "
                          "dequantises them",
                          checkpoint.path()));
}

[[noreturn]] void refuse_without_forms(const CheckpointSource& checkpoint) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: no matrix in 4 to 8 bits that can be kept so; want GGUF of Q4_0, "
                          "Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Q3_K, IQ4_NL, IQ4_XS, "
                          "MXFP4 or NVFP4 (strata convert --to gguf --type q8_0 makes one), or "
                          "safetensors of FP8, NVFP4, nf4 or fp4",
                          checkpoint.path()));
}

}  // namespace

WeightForms forms_of_described_files(const Backend& backend, const ModelConfig& config) {
  WeightForms forms;
  if (!config.has_mxfp4_experts) return forms;
  const ModelWeights names(backend, config, DType::kBF16, nullptr, kNoLayers);
  for (const Parameter& parameter : names.table()) {
    if (parameter.row == nullptr || parameter.expert < 0 || !parameter.is_matrix()) continue;
    if (parameter.num_cols() % kNarrowGroup == 0)
      forms.emplace(form_name(config, parameter), NarrowForm::kE2m1);
  }
  return forms;
}

KeptForms choose_forms_to_keep(const CheckpointSource& checkpoint, const Backend& backend,
                               const ModelConfig& config, DType compute_dtype, KeepWeights keep,
                               NarrowLook look, std::optional<LayerRange> part) {
  if (keep == KeepWeights::kBf16) return {};
  if (compute_dtype != DType::kBF16) {
    if (keep == KeepWeights::kAuto) return {};
    refuse_f32(checkpoint);
  }
  if (keep == KeepWeights::kAuto && count_quantised_bytes(checkpoint).stored == 0) return {};
  if (keep == KeepWeights::kNarrow) look = NarrowLook::kHeader;
  KeptForms kept = find_narrow_forms(checkpoint, backend, config, look, part);
  if (kept.forms.empty() && keep == KeepWeights::kNarrow) refuse_without_forms(checkpoint);
  return kept;
}

}  // namespace strata::model
