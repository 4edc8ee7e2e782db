// SPDX-License-Identifier: Apache-2.0
#include "model/weights/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "backend/file_memory.h"
#include "base/error.h"
#include "base/rng.h"
#include "checkpoint/checkpoint_dir.h"
#include "model/families/family.h"
#include "model/weights/load_configured.h"
#include "model/weights/narrow_forms.h"
#include "model/weights/tensor_names.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

// Small enough to stay in the shadow of the model, large enough for full read speed.
constexpr int64_t kSliceBytes = 32 << 20;

// Without elements, as transformers saves modules of width zero (DeepSeek-V3 with n_shared_experts
// 0): nothing to read, and part of files that are saved, since transformers looks for it there.
bool is_empty(const TensorInfo& info) {
  return std::find(info.dims.begin(), info.dims.end(), 0) != info.dims.end();
}
bool is_empty(const TensorDecl& tensor) {
  return tensor.shape.rank() > 0 && tensor.shape.num_elements() == 0;
}

// Rows [begin, end) of a parameter in slices of about kSliceBytes of f32.
template <typename Body>
void for_each_slice(const Parameter& parameter, Body body) {
  const int64_t rows = parameter.num_rows();
  const int64_t cols = parameter.num_cols();
  const int64_t step = std::max<int64_t>(1, kSliceBytes / (cols * dtype_bytes(DType::kF32)));
  for (int64_t begin = 0; begin < rows; begin += step)
    body(begin, std::min(rows, begin + step), cols);
}

bool is_integers(const Parameter& parameter) {
  return parameter.row != nullptr && parameter.row->integers > 0;
}

// Whole numbers of a checkpoint, which must be what the row says of them.
void load_integers(Backend& backend, const CheckpointSource& checkpoint, ModelWeights& weights,
                   size_t index) {
  const Parameter& parameter = weights.table()[index];
  const CheckpointTensor& tensor = *checkpoint.find(parameter.name);
  const int64_t count = parameter.num_cols();
  const int64_t row_size = parameter.shape[parameter.shape.rank() - 1];
  const std::vector<int64_t> values = checkpoint.read_integers(tensor, 0, count);
  const Scratch::Mark mark(backend.scratch());
  const HostAccess access(backend.allocator());
  const TensorView rows = backend.scratch().take(DType::kF32, {1, count});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = values[static_cast<size_t>(i)];
    const auto row = values.begin() + i / row_size * row_size;
    const bool repeated = std::find(row, values.begin() + i, value) != values.begin() + i;
    if (value < 0 || value >= parameter.row->integers || repeated) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("load: {}: tensor '{}': element {} is {}{}, want 0 to {}, all "
                              "different in a row",
                              checkpoint.shards()[tensor.shard], parameter.name, i, value,
                              repeated ? " again" : "", parameter.row->integers - 1));
    }
    rows.f32()[i] = static_cast<float>(value);
  }
  weights.write(backend, index, 0, rows);
}

void load_parameter(Backend& backend, const CheckpointSource& checkpoint, ModelWeights& weights,
                    size_t index) {
  const Parameter& parameter = weights.table()[index];
  if (is_integers(parameter)) return load_integers(backend, checkpoint, weights, index);
  if (parameter.panel.is_narrow()) return load_narrow(backend, checkpoint, weights, index);
  const CheckpointTensor& tensor = *checkpoint.find(parameter.name);
  const DType dtype = tensor.info.dtype;
  for_each_slice(parameter, [&](int64_t begin, int64_t end, int64_t cols) {
    if (!weights.keeps(index, begin, end)) return;
    const Scratch::Mark mark(backend.scratch());
    const TensorView rows = backend.scratch().take(dtype, {end - begin, cols});
    const int64_t first = (parameter.first_row + begin) * cols;
    {
      const HostAccess access(backend.allocator());
      checkpoint.read(tensor, first, (end - begin) * cols, rows.data);
    }
    weights.write(backend, index, begin, rows);
  });
}

// Where a checkpoint has none of a parameter's own name but one of its other spellings, the
// parameter becomes that tensor, or rows of it.
void choose_spelling(const CheckpointSource& checkpoint, const ModelConfig& config,
                     const NameForm& form, Parameter& parameter) {
  if (parameter.row == nullptr || checkpoint.find(parameter.name) != nullptr) return;
  const int64_t expert = std::max(0, parameter.expert);
  for (const Spelling& other : parameter.row->others) {
    const std::string name =
        in_form(form, layer_tensor_name(config, parameter.layer, other.suffix, expert));
    if (checkpoint.find(name) == nullptr) continue;
    parameter.name = name;
    parameter.stored_shape = other.stored;
    parameter.first_row = other.first_row + expert * other.rows_per_expert;
    return;
  }
}

// Where a checkpoint has none of the names so far, the family's others.
void choose_name(const CheckpointSource& checkpoint, const ModelConfig& config,
                 const std::string& canonical, Parameter& parameter) {
  if (config.other_names == nullptr || checkpoint.find(parameter.name) != nullptr) return;
  for (std::string& name : config.other_names(canonical)) {
    if (checkpoint.find(name) == nullptr) continue;
    parameter.name = std::move(name);
    return;
  }
}

// What is at fault with the tensor that a checkpoint has for a parameter, or nothing.
std::string tensor_fault(const Parameter& parameter, const TensorInfo& info,
                         const std::string& readable_types) {
  if (is_integers(parameter)) {
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

// Appends a parameter's rows to its tensor, of which it is the next part.
void save_parameter(Backend& backend, const LoadedModel& model, size_t index,
                    const TensorDecl& tensor, const RowSource* trained, CheckpointWriter& writer) {
  const ModelWeights& weights = *model.weights;
  const Parameter& parameter = weights.table()[index];
  const bool masters = trained != nullptr && (!parameter.buffer || !parameter.held);
  const bool raw = !masters && parameter.is_matrix() && tensor.dtype == DType::kBF16 &&
                   weights.compute_dtype() == DType::kBF16;
  for_each_slice(parameter, [&](int64_t begin, int64_t end, int64_t cols) {
    const Scratch::Mark mark(backend.scratch());
    const TensorView rows =
        backend.scratch().take(raw ? DType::kBF16 : DType::kF32, {end - begin, cols});
    if (masters) {
      (*trained)(index, begin, rows);
    } else {
      weights.read(backend, index, begin, rows);
    }
    const HostAccess access(backend.allocator());
    const auto count = static_cast<size_t>(rows.shape.num_elements());
    if (raw) {
      writer.append(tensor.name, std::as_bytes(std::span(rows.bf16(), count)));
    } else {
      writer.append_f32(tensor.name, std::span<const float>(rows.f32(), count));
    }
  });
}

// A table of a model that was read from no file.
void save_integers(Backend& backend, const ModelWeights& weights, size_t index,
                   const TensorDecl& tensor, CheckpointWriter& writer) {
  const Scratch::Mark mark(backend.scratch());
  const TensorView rows =
      backend.scratch().take(DType::kF32, {1, weights.table()[index].num_cols()});
  weights.read(backend, index, 0, rows);
  const HostAccess access(backend.allocator());
  const std::vector<int64_t> values(rows.f32(), rows.f32() + rows.shape.num_elements());
  writer.append(tensor.name, std::as_bytes(std::span(values)));
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
  return config.other_names == nullptr ? name : config.other_names(name).front();
}

// Those of the model that a layout lacks: a new one's, and one's from files of a program that
// leaves them out.
void add_empty_tensors(const ModelConfig& config, const NameForm& form, CheckpointLayout& layout) {
  std::unordered_set<std::string> there;
  for (const CheckpointLayout::Entry& entry : layout.entries) there.insert(entry.tensor.name);
  for (const ModelConfig::EmptyTensor& tensor : config.empty_tensors) {
    const std::string name = in_form(form, tensor.name);
    if (there.contains(name)) continue;
    const CheckpointLayout::Entry& first = layout.entries.front();
    layout.entries.push_back(
        {{.name = name, .dtype = first.tensor.dtype, .shape = tensor.shape}, first.shard});
  }
}

CheckpointLayout new_layout(const ModelWeights& weights, DType dtype) {
  CheckpointLayout layout;
  for (const StoredTensor& tensor : weights.stored_tensors()) {
    const Parameter& first = weights.table()[tensor.parameters.front()];
    layout.entries.push_back({{.name = new_name(weights.config(), tensor.name),
                               .dtype = first.floor == DType::kF32 ? DType::kF32 : dtype,
                               .shape = tensor.shape,
                               .integer_bytes = is_integers(first) ? 8 : 0},
                              "model.safetensors"});
  }
  return layout;
}

}  // namespace

void fail_faults(const std::string& dir, const std::vector<std::string>& faults) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("load: {}: {} fault(s):\n  {}", dir,
                                                       faults.size(), fmt::join(faults, "\n  ")));
}

std::vector<std::string> match_tensors(const CheckpointSource& checkpoint, ModelWeights& weights,
                                       std::vector<std::string>& ignored) {
  const ModelConfig& config = weights.config();
  std::vector<std::string> faults;
  std::unordered_set<std::string_view> wanted;
  const NameForm& form = form_of(checkpoint, config);
  const std::string embedding_name = in_form(form, "model.embed_tokens.weight");
  const std::string head_name = in_form(form, "lm_head.weight");
  for (Parameter& parameter : weights.table()) {
    const std::string canonical = parameter.name;
    parameter.name = in_form(form, canonical);
    choose_spelling(checkpoint, config, form, parameter);
    choose_name(checkpoint, config, canonical, parameter);
    const CheckpointTensor* tensor = checkpoint.find(parameter.name);
    if (tensor == nullptr && config.tie_word_embeddings && parameter.name == embedding_name) {
      tensor = checkpoint.find(head_name);
      if (tensor != nullptr) parameter.name = head_name;
    }
    if (!wanted.insert(parameter.name).second) continue;  // another part of the same tensor
    if (tensor == nullptr) {
      faults.push_back(fmt::format("tensor '{}' {} is missing", parameter.name,
                                   parameter.tensor_shape().to_string()));
      continue;
    }
    const std::string where =
        fmt::format("{}: tensor '{}'", checkpoint.shards()[tensor->shard], parameter.name);
    const std::string fault = tensor_fault(parameter, tensor->info, checkpoint.readable_types());
    if (!fault.empty()) faults.push_back(fmt::format("{}: {}", where, fault));
  }
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const std::string& name = tensor.info.name;
    if (wanted.contains(name)) continue;
    if (takes_no_part(config, name) || is_of_another_part(config, name) || is_empty(tensor.info)) {
      ignored.push_back(name);
    } else {
      faults.push_back(fmt::format(
          "{}: tensor '{}' {} is not used by family {}; wrong config.json?",
          checkpoint.shards()[tensor.shard], name, tensor.info.shape_text(), config.family));
    }
  }
  return faults;
}

LoadedModel load_model(Backend& backend, const std::string& dir, const LoadOptions& options) {
  return load_configured(backend, dir, load_config(dir, options.strict_config), options);
}

LoadedModel load_configured(Backend& backend, const std::string& dir, ParsedConfig config,
                            const LoadOptions& options) {
  LoadedModel model;
  model.dir = dir;
  model.checkpoint = open_checkpoint(dir);
  untie_stored_head(*model.checkpoint, config);
  model.config = std::move(config.config);
  model.warnings = std::move(config.warnings);
  model.config.use_mtp = uses_mtp(*model.checkpoint, model.config, options.mtp);
  std::unique_ptr<FileAllocator> files;
  if (!options.offload.empty()) files = std::make_unique<FileAllocator>(options.offload);
  KeptForms kept = forms_to_keep(*model.checkpoint, backend, model.config, options.compute_dtype,
                                 options.keep, NarrowLook::kCodes, options.part);
  if (!kept.faults.empty()) model.warnings.push_back("load: " + kept.warning());
  model.weights =
      std::make_unique<ModelWeights>(backend, model.config, options.compute_dtype, files.get(),
                                     options.part, std::move(kept.forms), options.share);
  model.files = std::move(files);
  const std::vector<std::string> faults =
      match_tensors(*model.checkpoint, *model.weights, model.ignored);
  if (!faults.empty()) fail_faults(dir, faults);
  for (size_t index = 0; index < model.weights->table().size(); ++index) {
    if (!model.weights->table()[index].held) continue;
    load_parameter(backend, *model.checkpoint, *model.weights, index);
  }
  backend.scratch().reserve(0, 0);  // what was read through is no pass's
  return model;
}

namespace {

double draw(const Parameter& parameter, const ModelConfig& config, const Counter& random,
            uint64_t element) {
  switch (parameter.draw) {
    case ParamDraw::kConstant:
      return static_cast<double>(parameter.init);
    case ParamDraw::kNormal:
      return config.initializer_range * random.normal(element);
    case ParamDraw::kLogUniform16:
      return std::log(0.01 + (16.0 - 0.01) * random.uniform(element));
  }
  return 0.0;
}

// A table whose rows hold different numbers, each number as often as any other, but for one: tokens
// of about the same rank among all, and so of about the same frequency, are spread over all.
void draw_integers(Backend& backend, const Counter& random, ModelWeights& weights, size_t index) {
  const Parameter& parameter = weights.table()[index];
  const int64_t row_size = parameter.shape[parameter.shape.rank() - 1];
  struct Number {
    int64_t times_used = 0;
    uint32_t rank = 0;  // among those used as often
    int64_t value = 0;
  };
  std::vector<Number> numbers(static_cast<size_t>(parameter.row->integers));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i].value = static_cast<int64_t>(i);
  std::vector<float> values;
  for (int64_t row = 0; row < parameter.num_cols() / row_size; ++row) {
    for (Number& number : numbers) {
      number.rank =
          random.words(static_cast<uint64_t>(row * parameter.row->integers + number.value))[0];
    }
    std::partial_sort(numbers.begin(), numbers.begin() + row_size, numbers.end(),
                      [](const Number& a, const Number& b) {
                        return std::tie(a.times_used, a.rank, a.value) <
                               std::tie(b.times_used, b.rank, b.value);
                      });
    for (int64_t i = 0; i < row_size; ++i) {
      Number& number = numbers[static_cast<size_t>(i)];
      values.push_back(static_cast<float>(number.value));
      ++number.times_used;
    }
  }
  const Scratch::Mark mark(backend.scratch());
  const TensorView rows = backend.scratch().take(DType::kF32, {1, parameter.num_cols()});
  ops::from_host(backend, values, rows);
  weights.write(backend, index, 0, rows);
}

}  // namespace

LoadedModel init_model(Backend& backend, const ModelConfig& config, DType compute_dtype,
                       uint64_t seed, std::optional<LayerRange> part, const MemoryShare& share) {
  LoadedModel model;
  model.config = config;
  model.weights = std::make_unique<ModelWeights>(backend, config, compute_dtype, nullptr, part,
                                                 WeightForms(), share);
  std::vector<float> values;  // of a slice
  for (size_t index = 0; index < model.weights->table().size(); ++index) {
    const Parameter& parameter = model.weights->table()[index];
    if (!parameter.held) continue;
    const Counter random{.seed = seed,
                         .stream = hash_name(parameter.name.data(), parameter.name.size())};
    if (is_integers(parameter)) {
      draw_integers(backend, random, *model.weights, index);
      continue;
    }
    for_each_slice(parameter, [&](int64_t begin, int64_t end, int64_t cols) {
      const Scratch::Mark mark(backend.scratch());
      const TensorView rows = backend.scratch().take(DType::kF32, {end - begin, cols});
      values.resize(static_cast<size_t>((end - begin) * cols));
      constexpr int64_t kEach = 1 << 16;
      const int64_t count = (end - begin) * cols;
      backend.run_on_host((count + kEach - 1) / kEach, [&](int64_t item) {
        for (int64_t i = item * kEach; i < std::min(count, (item + 1) * kEach); ++i) {
          const auto element = static_cast<uint64_t>(begin * cols + i);
          values[static_cast<size_t>(i)] =
              static_cast<float>(draw(parameter, config, random, element));
        }
      });
      ops::from_host(backend, values, rows);
      model.weights->write(backend, index, begin, rows);
    });
  }
  backend.scratch().reserve(0, 0);
  return model;
}

void read_stored(Backend& backend, const LoadedModel& model, size_t index, TensorView out) {
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
  const int64_t step = std::max<int64_t>(1, kSliceBytes / (cols * dtype_bytes(DType::kF32)));
  for (int64_t begin = 0; begin < out.rows(); begin += step)
    model.checkpoint->read_f32(tensor, (parameter.first_row + first_row + begin) * cols,
                               std::min(step, out.rows() - begin) * cols, out.f32() + begin * cols);
}

void save_model(Backend& backend, const LoadedModel& model, const std::string& dir,
                const RowSource* trained, DType dtype_of_new) {
  const ModelWeights& weights = *model.weights;
  CheckpointLayout layout =
      model.checkpoint != nullptr ? model.checkpoint->layout() : new_layout(weights, dtype_of_new);
  std::erase_if(layout.entries, [&](const CheckpointLayout::Entry& entry) {
    return !is_of_another_part(model.config, entry.tensor.name) && !is_empty(entry.tensor) &&
           std::find(model.ignored.begin(), model.ignored.end(), entry.tensor.name) !=
               model.ignored.end();
  });
  add_empty_tensors(model.config,
                    model.checkpoint != nullptr ? form_of(*model.checkpoint, model.config)
                                                : model.config.name_forms.front(),
                    layout);
  std::unordered_map<std::string, const StoredTensor*> stored;
  const std::vector<StoredTensor> tensors = weights.stored_tensors();
  for (const StoredTensor& tensor : tensors) {
    stored[model.checkpoint != nullptr ? std::string(tensor.name)
                                       : new_name(model.config, tensor.name)] = &tensor;
  }
  if (trained == nullptr && weights.compute_dtype() == DType::kBF16) {
    for (const CheckpointLayout::Entry& entry : layout.entries) {
      if (entry.tensor.dtype == DType::kBF16 || model.checkpoint == nullptr) continue;
      if (entry.tensor.integer_bytes > 0) continue;
      if (!stored.contains(entry.tensor.name)) continue;
      if (weights.table()[stored.at(entry.tensor.name)->parameters.front()].floor == DType::kF32) {
        continue;
      }
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format(
              "save: tensor '{}' was stored as {}, and bf16 mode holds it rounded; load with "
              "--dtype f32 to save it",
              entry.tensor.name, dtype_name(entry.tensor.dtype)));
    }
  }
  CheckpointWriter writer(dir, layout);
  for (const TensorDecl& tensor : writer.tensors()) {
    if (is_empty(tensor)) continue;
    const auto found = stored.find(tensor.name);
    if (found == stored.end() || (tensor.integer_bytes > 0 && model.checkpoint != nullptr)) {
      copy_tensor(*model.checkpoint, tensor, writer);
      continue;
    }
    if (tensor.integer_bytes > 0) {
      save_integers(backend, weights, found->second->parameters.front(), tensor, writer);
      continue;
    }
    for (const size_t index : found->second->parameters) {
      save_parameter(backend, model, index, tensor, trained, writer);
    }
  }
  writer.commit();
}

}  // namespace strata::model
