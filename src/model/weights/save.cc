// SPDX-License-Identifier: Apache-2.0
#include "model/weights/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/checkpoint_dir.h"
#include "model/weights/slices.h"
#include "model/weights/tensor_names.h"

namespace strata::model {
namespace {

// Without elements, as transformers saves modules of width zero (DeepSeek-V3 with n_shared_experts
// 0): part of files that are saved, since transformers looks for it there.
bool is_empty(const TensorDecl& tensor) {
  return tensor.shape.rank() > 0 && tensor.shape.num_elements() == 0;
}

void append_rows(const TensorView& rows, const std::string& tensor, CheckpointWriter& writer) {
  const auto count = static_cast<size_t>(rows.shape.num_elements());
  if (rows.dtype == DType::kBF16) {
    writer.append(tensor, std::as_bytes(std::span(rows.bf16(), count)));
  } else {
    writer.append_f32(tensor, std::span<const float>(rows.f32(), count));
  }
}

// Reads rows of `masters` or, where there are none, of the weights.
void read_rows_to_save(Backend& backend, const ModelWeights& weights, size_t index,
                       int64_t first_row, const RowSource* masters, const TensorView& rows) {
  if (masters != nullptr) {
    (*masters)(index, first_row, rows);
  } else {
    weights.read_rows(backend, index, first_row, rows);
  }
}

// Appends rows of a parameter to its tensor, of which they are the next part.
void save_rows(Backend& backend, const LoadedModel& model, const StoredRows& stored,
               const TensorDecl& tensor, const RowSource* trained, CheckpointWriter& writer) {
  const ModelWeights& weights = *model.weights;
  const size_t index = stored.parameter;
  const Parameter& parameter = weights.table()[index];
  const RowSource* masters = !parameter.buffer || !parameter.held ? trained : nullptr;
  const bool raw = masters == nullptr && parameter.is_matrix() && tensor.dtype == DType::kBF16 &&
                   weights.compute_dtype() == DType::kBF16;
  const auto save_slice = [&](int64_t begin, int64_t end, int64_t cols) {
    const Scratch::Mark mark(backend.scratch());
    const TensorView rows =
        backend.scratch().take(raw ? DType::kBF16 : DType::kF32, {end - begin, cols});
    read_rows_to_save(backend, weights, index, begin, masters, rows);
    const HostAccess access(backend.allocator());
    append_rows(rows, tensor.name, writer);
  };
  for_each_slice(parameter, stored.first, stored.first + stored.count, save_slice);
}

// A table of a model that was read from no file.
void save_integers(Backend& backend, const ModelWeights& weights, size_t index,
                   const TensorDecl& tensor, CheckpointWriter& writer) {
  const Scratch::Mark mark(backend.scratch());
  const TensorView rows =
      backend.scratch().take(DType::kF32, {1, weights.table()[index].num_cols()});
  weights.read_rows(backend, index, 0, rows);
  const HostAccess access(backend.allocator());
  const std::vector<int64_t> values(rows.f32(), rows.f32() + rows.shape.num_elements());
  writer.append(tensor.name, std::as_bytes(std::span(values)));
}

// A tensor that holds weights.
void save_stored_tensor(Backend& backend, const LoadedModel& model, const StoredTensor& stored,
                        const TensorDecl& tensor, const RowSource* trained,
                        CheckpointWriter& writer) {
  if (tensor.integer_bytes > 0) {
    return save_integers(backend, *model.weights, stored.parameters.front(), tensor, writer);
  }
  for (const StoredRows& rows : stored.rows)
    save_rows(backend, model, rows, tensor, trained, writer);
}

// A tensor that is none of ours, as it was read.
void copy_tensor(const CheckpointSource& checkpoint, const TensorDecl& tensor,
                 CheckpointWriter& writer) {
  const CheckpointTensor& source = *checkpoint.find(tensor.name);
  const int64_t count = tensor.shape.num_elements();
  if (tensor.integer_bytes > 0) {
    std::vector<std::byte> bytes(static_cast<size_t>(count * tensor.integer_bytes));
    checkpoint.read_bytes(source, 0, bytes);
    return writer.append(tensor.name, bytes);
  }
  constexpr int64_t kElements = 8 << 20;
  std::vector<float> slice;
  for (int64_t first = 0; first < count; first += kElements) {
    slice.resize(static_cast<size_t>(std::min(kElements, count - first)));
    checkpoint.read_f32(source, first, std::ssize(slice), slice.data());
    writer.append_f32(tensor.name, slice);
  }
}

// What a parameter is called in the files of a model that has none yet.
std::string new_name(const ModelConfig& config, std::string_view canonical) {
  std::string name(canonical);
  return config.names_in_files == nullptr ? name : config.names_in_files(name).front();
}

// Those of the model that a layout lacks: a new one's, and one's from files of a program that
// leaves them out.
void add_empty_tensors(const ModelConfig& config, const NameForm& form, CheckpointLayout& layout) {
  std::unordered_set<std::string> there;
  for (const CheckpointLayout::Entry& entry : layout.entries) there.insert(entry.tensor.name);
  for (const ModelConfig::EmptyTensor& tensor : config.empty_tensors) {
    const std::string name = name_in_form(form, tensor.name);
    if (there.contains(name)) continue;
    const CheckpointLayout::Entry& first = layout.entries.front();
    layout.entries.push_back(
        {{.name = name, .dtype = first.tensor.dtype, .shape = tensor.shape}, first.shard});
  }
}

CheckpointLayout layout_of_new_model(const ModelWeights& weights, DType dtype) {
  CheckpointLayout layout;
  for (const StoredTensor& tensor : weights.stored_tensors()) {
    const Parameter& first = weights.table()[tensor.parameters.front()];
    layout.entries.push_back({{.name = new_name(weights.config(), tensor.name),
                               .dtype = first.floor == DType::kF32 ? DType::kF32 : dtype,
                               .shape = tensor.shape,
                               .integer_bytes = first.is_integers() ? 8 : 0},
                              "model.safetensors"});
  }
  return layout;
}

// Tensors of the files that hold weights.
using StoredByName = std::unordered_map<std::string, const StoredTensor*>;

StoredByName stored_by_file_name(const LoadedModel& model,
                                 const std::vector<StoredTensor>& tensors) {
  StoredByName stored;
  for (const StoredTensor& tensor : tensors) {
    stored[model.checkpoint != nullptr ? std::string(tensor.name)
                                       : new_name(model.config, tensor.name)] = &tensor;
  }
  return stored;
}

// Without masters a model in bf16 has what its files have only where they are in bf16.
void check_not_rounded(const LoadedModel& model, const CheckpointLayout& layout,
                       const StoredByName& stored) {
  if (model.checkpoint == nullptr || model.weights->compute_dtype() != DType::kBF16) return;
  for (const CheckpointLayout::Entry& entry : layout.entries) {
    if (entry.tensor.dtype == DType::kBF16 || entry.tensor.integer_bytes > 0) continue;
    const auto found = stored.find(entry.tensor.name);
    if (found == stored.end()) continue;
    const size_t first = found->second->parameters.front();
    if (model.weights->table()[first].floor == DType::kF32) continue;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("save: tensor '{}' was stored as {}, and bf16 mode holds it rounded; load with "
                    "--dtype f32 to save it",
                    entry.tensor.name, dtype_name(entry.tensor.dtype)));
  }
}

bool is_left_out(const LoadedModel& model, const TensorDecl& tensor) {
  return !is_of_another_modality(model.config, tensor.name) && !is_empty(tensor) &&
         std::find(model.ignored.begin(), model.ignored.end(), tensor.name) != model.ignored.end();
}

// The source's files without its ignored tensors, or one file of a model made in memory.
CheckpointLayout layout_to_save(const LoadedModel& model, DType dtype_of_new) {
  CheckpointLayout layout = model.checkpoint != nullptr
                                ? model.checkpoint->layout()
                                : layout_of_new_model(*model.weights, dtype_of_new);
  std::erase_if(layout.entries, [&](const CheckpointLayout::Entry& entry) {
    return is_left_out(model, entry.tensor);
  });
  layout.packs_experts = layout.packs_experts || model.config.packs_experts;
  add_empty_tensors(model.config,
                    model.checkpoint != nullptr ? find_name_form(*model.checkpoint, model.config)
                                                : model.config.name_forms.front(),
                    layout);
  return layout;
}

}  // namespace

void save_model(Backend& backend, const LoadedModel& model, const std::string& dir,
                const RowSource* trained, DType dtype_of_new) {
  const CheckpointLayout layout = layout_to_save(model, dtype_of_new);
  const std::vector<StoredTensor> tensors = model.weights->stored_tensors();
  const StoredByName stored = stored_by_file_name(model, tensors);
  if (trained == nullptr) check_not_rounded(model, layout, stored);
  CheckpointWriter writer(dir, layout);
  for (const TensorDecl& tensor : writer.tensors()) {
    if (is_empty(tensor)) continue;
    const auto found = stored.find(tensor.name);
    if (found == stored.end() || (tensor.integer_bytes > 0 && model.checkpoint != nullptr)) {
      copy_tensor(*model.checkpoint, tensor, writer);
    } else {
      save_stored_tensor(backend, model, *found->second, tensor, trained, writer);
    }
  }
  writer.commit();
}

}  // namespace strata::model
