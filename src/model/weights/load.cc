// SPDX-License-Identifier: Apache-2.0
#include "model/weights/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "backend/file_memory.h"
#include "base/error.h"
#include "base/rng.h"
#include "checkpoint/checkpoint_dir.h"
#include "model/families/family.h"
#include "model/weights/load_in_4bit.h"
#include "model/weights/narrow_forms.h"
#include "model/weights/slices.h"
#include "model/weights/tensor_names.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

// Without elements, as transformers saves modules of width zero (DeepSeek-V3 with n_shared_experts
// 0): nothing to read.
bool is_empty(const TensorInfo& info) {
  return std::find(info.dims.begin(), info.dims.end(), 0) != info.dims.end();
}

// Whether the value at a place is in its row before that.
bool is_repeated_in_row(std::span<const int64_t> values, int64_t at, int64_t row_size) {
  const auto row = values.begin() + at / row_size * row_size;
  const auto here = values.begin() + at;
  return std::find(row, here, *here) != here;
}

// Whole numbers must be below the row's limit, and different in a row of the tensor.
void check_integers(const CheckpointSource& checkpoint, const Parameter& parameter,
                    std::span<const int64_t> values) {
  const int64_t row_size = parameter.shape[parameter.shape.rank() - 1];
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    const int64_t value = values[static_cast<size_t>(i)];
    const bool repeated = is_repeated_in_row(values, i, row_size);
    if (value >= 0 && value < parameter.row->integers && !repeated) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("load: {}: tensor '{}': element {} is {}{}, want 0 to {}, all "
                    "different in a row",
                    checkpoint.shards()[checkpoint.find(parameter.name)->shard], parameter.name, i,
                    value, repeated ? " again" : "", parameter.row->integers - 1));
  }
}

void load_integers(Backend& backend, const CheckpointSource& checkpoint, ModelWeights& weights,
                   size_t index) {
  const Parameter& parameter = weights.table()[index];
  const CheckpointTensor& tensor = *checkpoint.find(parameter.name);
  const int64_t count = parameter.num_cols();
  const std::vector<int64_t> values = checkpoint.read_integers(tensor, 0, count);
  check_integers(checkpoint, parameter, values);
  const Scratch::Mark mark(backend.scratch());
  const HostAccess access(backend.allocator());
  const TensorView rows = backend.scratch().take(DType::kF32, {1, count});
  std::transform(values.begin(), values.end(), rows.f32(),
                 [](int64_t value) { return static_cast<float>(value); });
  weights.write_rows(backend, index, 0, rows);
}

// Rows [begin, end) of a parameter.
void load_rows(Backend& backend, const CheckpointSource& checkpoint, const CheckpointTensor& tensor,
               ModelWeights& weights, size_t index, int64_t begin, int64_t end) {
  const Parameter& parameter = weights.table()[index];
  const int64_t cols = parameter.num_cols();
  const Scratch::Mark mark(backend.scratch());
  const TensorView rows = backend.scratch().take(tensor.info.dtype, {end - begin, cols});
  {
    const HostAccess access(backend.allocator());
    for_each_stored_run(parameter, begin, end, [&](int64_t first, int64_t at, int64_t count) {
      checkpoint.read(tensor, at * cols, count * cols,
                      rows.slice_rows(first - begin, first - begin + count).data);
    });
  }
  weights.write_rows(backend, index, begin, rows);
}

void load_parameter(Backend& backend, const CheckpointSource& checkpoint, ModelWeights& weights,
                    size_t index) {
  const Parameter& parameter = weights.table()[index];
  if (parameter.is_integers()) return load_integers(backend, checkpoint, weights, index);
  if (parameter.panel.is_narrow())
    return load_narrow_parameter(backend, checkpoint, weights, index);
  const CheckpointTensor& tensor = *checkpoint.find(parameter.name);
  for_each_slice(parameter, [&](int64_t begin, int64_t end, int64_t /*cols*/) {
    if (weights.keeps(index, begin, end)) {
      load_rows(backend, checkpoint, tensor, weights, index, begin, end);
    }
  });
}

void load_held_parameters(Backend& backend, const CheckpointSource& checkpoint,
                          ModelWeights& weights) {
  for (size_t index = 0; index < weights.table().size(); ++index) {
    if (weights.table()[index].held) load_parameter(backend, checkpoint, weights, index);
  }
}

// Where a checkpoint has none of a parameter's own name but one of its other spellings, the
// parameter becomes that tensor, or rows of it.
void resolve_spelling(const CheckpointSource& checkpoint, const ModelConfig& config,
                      const NameForm& form, Parameter& parameter) {
  if (parameter.row == nullptr || checkpoint.find(parameter.name) != nullptr) return;
  const int64_t expert = std::max(0, parameter.expert);
  for (const Spelling& other : parameter.row->others) {
    const std::string name =
        name_in_form(form, layer_tensor_name(config, parameter.layer, other.suffix, expert));
    if (checkpoint.find(name) == nullptr) continue;
    parameter.name = name;
    parameter.stored_shape = other.stored;
    parameter.first_row = other.first_row + expert * other.rows_per_expert;
    parameter.runs = other.runs;
    return;
  }
}

// Where a checkpoint has none of the names so far, the family's others, as they are or in its form.
void resolve_family_name(const CheckpointSource& checkpoint, const ModelConfig& config,
                         const NameForm& form, const std::string& canonical, Parameter& parameter) {
  if (config.names_in_files == nullptr || checkpoint.find(parameter.name) != nullptr) return;
  for (std::string& name : config.names_in_files(canonical)) {
    const bool has_prefix = name.starts_with(NameForm().model);
    const std::string in_form = has_prefix ? name_in_form(form, name) : name;
    if (checkpoint.find(name) == nullptr && checkpoint.find(in_form) == nullptr) continue;
    parameter.name = checkpoint.find(name) == nullptr ? in_form : std::move(name);
    return;
  }
}

// Where a checkpoint lacks the larger tensor that new files of the family have, but has the
// parameter by itself.
void resolve_single_tensor(const CheckpointSource& checkpoint, const ModelConfig& config,
                           const NameForm& form, Parameter& parameter) {
  if (parameter.row == nullptr || parameter.stored_shape.rank() == 0) return;
  if (checkpoint.find(parameter.name) != nullptr) return;
  const std::string own = layer_tensor_name(config, parameter.layer, parameter.row->suffix,
                                            std::max(0, parameter.expert));
  Parameter single = parameter;
  single.name = name_in_form(form, own);
  resolve_family_name(checkpoint, config, form, own, single);
  if (checkpoint.find(single.name) == nullptr) return;
  parameter.name = single.name;
  parameter.stored_shape = {};
  parameter.first_row = 0;
  parameter.runs = {};
}

// A tied embedding may be stored as the head alone.
void resolve_tied_head(const CheckpointSource& checkpoint, const ModelConfig& config,
                       const NameForm& form, Parameter& parameter) {
  if (!config.tie_word_embeddings || checkpoint.find(parameter.name) != nullptr) return;
  if (parameter.name != name_in_form(form, "model.embed_tokens.weight")) return;
  const std::string head = name_in_form(form, "lm_head.weight");
  if (checkpoint.find(head) != nullptr) parameter.name = head;
}

// What is at fault with the tensor that a checkpoint has for a parameter, or nothing.
std::string find_type_or_shape_fault(const Parameter& parameter, const TensorInfo& info,
                                     const std::string& readable_types) {
  if (parameter.is_integers()) {
    if (info.integer_bytes() == 0) return fmt::format("dtype {}, want I64 or I32", info.dtype_name);
  } else if (!info.readable) {
    return fmt::format("dtype {}, want {}", info.dtype_name, readable_types);
  }
  const Shape& wanted = parameter.tensor_shape();
  bool equal = std::ssize(info.dims) == wanted.rank();
  for (int axis = 0; equal && axis < wanted.rank(); ++axis) {
    equal = info.dims[static_cast<size_t>(axis)] == wanted[axis];
  }
  if (equal) return {};
  return fmt::format("shape {}, config wants {}; wrong config.json?", info.shape_text(),
                     wanted.to_string());
}

// The same with its name, or that there is none.
std::string find_tensor_fault(const CheckpointSource& checkpoint, const Parameter& parameter) {
  const CheckpointTensor* tensor = checkpoint.find(parameter.name);
  if (tensor == nullptr) {
    return fmt::format("tensor '{}' {} is missing", parameter.name,
                       parameter.tensor_shape().to_string());
  }
  const std::string fault =
      find_type_or_shape_fault(parameter, tensor->info, checkpoint.readable_types());
  if (fault.empty()) return {};
  return fmt::format("{}: tensor '{}': {}", checkpoint.shards()[tensor->shard], parameter.name,
                     fault);
}

// Tensors that no parameter wants: on the ignore list, or faults.
void classify_unused_tensors(const CheckpointSource& checkpoint, const ModelConfig& config,
                             const std::unordered_set<std::string_view>& wanted,
                             std::vector<std::string>& ignored, std::vector<std::string>& faults) {
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const std::string& name = tensor.info.name;
    if (wanted.contains(name)) continue;
    if (is_unused_tensor(config, name) || is_of_another_modality(config, name) ||
        is_empty(tensor.info)) {
      ignored.push_back(name);
    } else {
      faults.push_back(fmt::format(
          "{}: tensor '{}' {} is not used by family {}; wrong config.json?",
          checkpoint.shards()[tensor.shard], name, tensor.info.shape_text(), config.family));
    }
  }
}

}  // namespace

void fail_faults(const std::string& dir, const std::vector<std::string>& faults) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("load: {}: {} fault(s):\n  {}", dir,
                                                       faults.size(), fmt::join(faults, "\n  ")));
}

std::vector<std::string> match_parameters(const CheckpointSource& checkpoint, ModelWeights& weights,
                                          std::vector<std::string>& ignored) {
  const ModelConfig& config = weights.config();
  std::vector<std::string> faults;
  std::unordered_set<std::string_view> wanted;
  const NameForm& form = find_name_form(checkpoint, config);
  for (Parameter& parameter : weights.table()) {
    const std::string canonical = parameter.name;
    parameter.name = name_in_form(form, canonical);
    resolve_spelling(checkpoint, config, form, parameter);
    resolve_family_name(checkpoint, config, form, canonical, parameter);
    resolve_single_tensor(checkpoint, config, form, parameter);
    resolve_tied_head(checkpoint, config, form, parameter);
    if (!wanted.insert(parameter.name).second) continue;  // another part of the same tensor
    std::string fault = find_tensor_fault(checkpoint, parameter);
    if (!fault.empty()) faults.push_back(std::move(fault));
  }
  classify_unused_tensors(checkpoint, config, wanted, ignored, faults);
  return faults;
}

namespace {

bool has_mtp_tensors(const CheckpointSource& checkpoint) {
  return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                     [](const CheckpointTensor& tensor) {
                       const std::string_view name = tensor.info.name;
                       return name.starts_with("mtp.") || name.starts_with("model.mtp.");
                     });
}

}  // namespace

bool resolve_use_mtp(const CheckpointSource& checkpoint, const ModelConfig& config, UseMtp use) {
  if (use == UseMtp::kNever) return false;
  const bool there = config.mtp_layer && has_mtp_tensors(checkpoint);
  if (there || use == UseMtp::kIfThere) return there;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("load: no layer of multi-token prediction: {}",
                  config.mtp_layer
                      ? "the checkpoint has no tensor mtp.*; transformers does not save them"
                      : fmt::format("config.json has none, or none that is known: {}", kKnownMtp)));
}

LoadedModel load_model(Backend& backend, const std::string& dir, const LoadOptions& options) {
  return load_model(backend, dir, load_config(dir, options.strict_config), options);
}

namespace {

KeptForms choose_forms(const Backend& backend, const LoadedModel& model,
                       const LoadOptions& options) {
  // A rank that has a part of the weights reads no codes of the others'.
  const NarrowLook look = options.share.is_divided() ? NarrowLook::kScales : NarrowLook::kCodes;
  return choose_forms_to_keep(*model.checkpoint, backend, model.config, options.compute_dtype,
                              options.keep, look, options.part);
}

}  // namespace

LoadedModel load_model(Backend& backend, const std::string& dir, ParsedConfig config,
                       const LoadOptions& options) {
  LoadedModel model;
  model.dir = dir;
  model.checkpoint = open_checkpoint(dir);
  verify_weight_tying(*model.checkpoint, config);
  model.config = std::move(config.config);
  model.warnings = std::move(config.warnings);
  model.config.use_mtp = resolve_use_mtp(*model.checkpoint, model.config, options.mtp);
  if (options.load_in_4bit)
    model.checkpoint = quantise_in_4bit(std::move(model.checkpoint), backend, model.config);
  std::unique_ptr<FileAllocator> files;
  if (!options.offload.empty()) files = std::make_unique<FileAllocator>(options.offload);
  KeptForms kept = choose_forms(backend, model, options);
  if (!kept.faults.empty()) model.warnings.push_back("load: " + kept.warning());
  model.weights = std::make_unique<ModelWeights>(
      backend, model.config, options.compute_dtype, files.get(), options.part,
      std::move(kept.forms), options.share, options.shared, options.tensor, options.expert);
  model.weights->set_sharers(options.weight_sharers);
  model.files = std::move(files);
  const std::vector<std::string> faults =
      match_parameters(*model.checkpoint, *model.weights, model.ignored);
  if (!faults.empty()) fail_faults(dir, faults);
  const bool is_filled = options.shared != nullptr && options.shared->is_filled();
  if (!is_filled) load_held_parameters(backend, *model.checkpoint, *model.weights);
  backend.scratch().book(0, 0);  // what was read through is no pass's
  return model;
}

void read_stored_parameter(Backend& backend, const LoadedModel& model, size_t index,
                           TensorView out) {
  const Parameter& parameter = model.weights->table()[index];
  CHECK(out.dense() && out.shape.num_elements() == parameter.shape.num_elements());
  read_stored_rows(backend, model, index, 0,
                   TensorView(out.data, DType::kF32, {parameter.num_rows(), parameter.num_cols()}));
}

void read_stored_rows(Backend& backend, const LoadedModel& model, size_t index, int64_t first_row,
                      TensorView out) {
  const HostAccess access(backend.allocator());
  const Parameter& parameter = model.weights->table()[index];
  const int64_t cols = parameter.num_cols();
  CHECK(model.checkpoint != nullptr && out.dense() && out.cols() == cols, index);
  const CheckpointTensor& tensor = *model.checkpoint->find(parameter.name);
  const int64_t step = slice_rows(cols);
  for (int64_t begin = 0; begin < out.rows(); begin += step) {
    const int64_t end = std::min(begin + step, out.rows());
    for_each_stored_run(parameter, first_row + begin, first_row + end,
                        [&](int64_t first, int64_t at, int64_t count) {
                          model.checkpoint->read_f32(tensor, at * cols, count * cols,
                                                     out.f32() + (first - first_row) * cols);
                        });
  }
}

}  // namespace strata::model
