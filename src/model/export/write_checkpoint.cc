// SPDX-License-Identifier: Apache-2.0
#include "model/export/write_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "base/stop.h"
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/packed_experts.h"
#include "checkpoint/stacks.h"

namespace strata::model {
namespace {

// A tensor of the new files and the tensors of the source that it is made of, in its order.
struct OutTensor {
  TensorDecl decl;
  std::string shard;
  std::vector<std::string> parts;
};

std::vector<OutTensor> plain_tensors(const CheckpointLayout& layout) {
  std::vector<OutTensor> out;
  for (const auto& [tensor, shard] : layout.entries) out.push_back({tensor, shard, {tensor.name}});
  return out;
}

// What the weights of a model are called in stacks.
struct StackNames {
  std::unordered_map<std::string_view, std::string> stack_of;  // of a tensor, by its own name
  std::unordered_map<std::string, std::vector<std::string_view>> parts;  // layer by layer
  std::unordered_map<std::string, int64_t> sizes;                        // layers of the stack
};

StackNames stack_names(const std::vector<StoredTensor>& tensors, const ModelWeights& weights) {
  const LayerTable& layers = weights.layers();
  StackNames names;
  for (const StoredTensor& tensor : tensors) {
    const Parameter& first = weights.table()[tensor.parameters.front()];
    if (first.layer < 0 || first.row == nullptr) continue;
    const LayerPlace& place = layers.at(first.layer);
    const int64_t expert = tensor.parameters.size() == 1 ? first.expert : -1;
    const auto name = stacked_name(tensor.name, first.layer, place.stack, expert);
    if (!name) continue;
    names.stack_of[tensor.name] = *name;
    names.parts[*name].push_back(tensor.name);
    names.sizes[*name] = layers.stacks()[static_cast<size_t>(place.stack)].size();
  }
  return names;
}

using Decls = std::unordered_map<std::string_view, const TensorDecl*>;

bool all_alike(const std::vector<std::string_view>& names, const Decls& decls) {
  const TensorDecl& first = *decls.at(names.front());
  return std::all_of(names.begin(), names.end(), [&](std::string_view name) {
    const auto found = decls.find(name);
    return found != decls.end() && found->second->dtype == first.dtype &&
           found->second->integer_bytes == first.integer_bytes &&
           found->second->shape == first.shape;
  });
}

// The tensor of a whole stack, made of `parts`, of which `one` is like all.
OutTensor joined_tensor(const std::string& name, const TensorDecl& one,
                        const std::vector<std::string_view>& parts, int64_t layers) {
  OutTensor whole = {one, {}, {parts.begin(), parts.end()}};
  whole.decl.name = name;
  whole.decl.shape = {layers};
  if (is_stack_of_experts(name)) whole.decl.shape.push_back(std::ssize(parts) / layers);
  for (int axis = 0; axis < one.shape.rank(); ++axis) {
    whole.decl.shape.push_back(one.shape[axis]);
  }
  return whole;
}

// Tensors of the layers of one stack are joined where all of them are alike; others stay by layer.
std::vector<OutTensor> stacked_tensors(std::vector<OutTensor> plain, const StackNames& names) {
  Decls decls;
  for (const OutTensor& tensor : plain) decls[tensor.decl.name] = &tensor.decl;
  std::vector<OutTensor> out;
  std::unordered_map<std::string_view, bool> joins;  // of each stack that was met
  for (const OutTensor& tensor : plain) {
    const auto found = names.stack_of.find(tensor.decl.name);
    if (found == names.stack_of.end()) {
      out.push_back(tensor);
      continue;
    }
    const auto [known, is_first] = joins.try_emplace(found->second);
    if (is_first) known->second = all_alike(names.parts.at(found->second), decls);
    if (!known->second) {
      out.push_back(tensor);
    } else if (is_first) {
      out.push_back(joined_tensor(found->second, tensor.decl, names.parts.at(found->second),
                                  names.sizes.at(found->second)));
    }
  }
  return out;
}

// In the order of the model, and then by name: the same whatever files the source has.
void sort_in_model_order(std::vector<OutTensor>& tensors, const std::vector<StoredTensor>& stored) {
  std::unordered_map<std::string_view, size_t> places;
  for (size_t i = 0; i < stored.size(); ++i) places[stored[i].name] = i;
  const auto key = [&](const OutTensor& tensor) {
    const auto found = places.find(tensor.decl.name);
    return std::pair(found == places.end() ? stored.size() : found->second,
                     std::string_view(tensor.decl.name));
  };
  std::stable_sort(tensors.begin(), tensors.end(),
                   [&](const OutTensor& a, const OutTensor& b) { return key(a) < key(b); });
}

// The end of those from the i-th on that files have as one tensor.
size_t end_of_stored(const std::vector<OutTensor>& tensors, size_t i, bool packs_experts) {
  size_t end = i + 1;
  if (!packs_experts) return end;
  const std::string whole = packed_tensor_of(tensors[i].decl.name);
  while (!whole.empty() && end < tensors.size() &&
         packed_tensor_of(tensors[end].decl.name) == whole) {
    ++end;
  }
  return end;
}

// The first tensor of each file: one file, or several of at most so many bytes.
std::vector<size_t> first_of_each_shard(const std::vector<OutTensor>& tensors, int64_t shard_bytes,
                                        bool packs_experts) {
  std::vector<size_t> begins = {0};
  int64_t bytes = 0;
  for (size_t i = 0, end = 0; i < tensors.size(); i = end) {
    end = end_of_stored(tensors, i, packs_experts);
    int64_t more = 0;
    for (size_t j = i; j < end; ++j) more += tensors[j].decl.bytes();
    if (bytes > 0 && bytes + more > shard_bytes) {
      begins.push_back(i);
      bytes = 0;
    }
    bytes += more;
  }
  return begins;
}

void assign_shards(const std::vector<size_t>& begins, std::vector<OutTensor>& tensors) {
  size_t shard = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (shard + 1 < begins.size() && begins[shard + 1] == i) ++shard;
    tensors[i].shard = begins.size() > 1 ? fmt::format("model-{:05}-of-{:05}.safetensors",
                                                       shard + 1, begins.size())
                                         : "model.safetensors";
  }
}

// The type that a tensor is written in. What is kept in f32 in every mode stays as it is.
DType written_dtype(const TensorDecl& decl, const std::unordered_set<std::string_view>& keeps,
                    const WriteOptions& options) {
  if (!options.dtype || decl.integer_bytes > 0 || keeps.contains(decl.name)) return decl.dtype;
  return *options.dtype;
}

// Names of what is kept in f32 in every mode.
std::unordered_set<std::string_view> names_kept_f32(const std::vector<StoredTensor>& stored,
                                                    const ModelWeights& weights) {
  std::unordered_set<std::string_view> names;
  for (const StoredTensor& tensor : stored) {
    if (weights.table()[tensor.parameters.front()].floor == DType::kF32) names.insert(tensor.name);
  }
  return names;
}

std::string stacks_metadata(const LayerTable& layers) {
  LayerStacks stacks;
  for (const LayerStack& stack : layers.stacks()) stacks.push_back(stack.layers);
  return stacks_text(stacks);
}

void set_layout_entries(const std::vector<OutTensor>& tensors, CheckpointLayout& layout) {
  layout.entries.clear();
  for (const OutTensor& tensor : tensors) layout.entries.push_back({tensor.decl, tensor.shard});
}

// The new files: their tensors, with the shards that these are in, and what they have besides.
struct FilePlan {
  std::vector<OutTensor> tensors;
  CheckpointLayout layout;
  std::map<std::string, std::string> metadata;
};

FilePlan plan_files(const CheckpointSource& source, const ModelWeights& weights,
                    const WriteOptions& options) {
  const std::vector<StoredTensor> stored = weights.stored_tensors();
  const std::unordered_set<std::string_view> keeps = names_kept_f32(stored, weights);
  FilePlan plan = {.tensors = {}, .layout = source.layout(), .metadata = {}};
  plan.layout.packs_experts = plan.layout.packs_experts || weights.config().packs_experts;
  plan.tensors = plain_tensors(plan.layout);
  for (OutTensor& tensor : plan.tensors) {
    tensor.decl.dtype = written_dtype(tensor.decl, keeps, options);
  }
  if (options.shard_bytes > 0) {
    plan.layout.index_metadata.clear();
    sort_in_model_order(plan.tensors, stored);
    if (options.stacked) {
      plan.metadata[kStacksKey] = stacks_metadata(weights.layers());
      plan.tensors = stacked_tensors(std::move(plan.tensors), stack_names(stored, weights));
    }
    const std::vector<size_t> begins =
        first_of_each_shard(plan.tensors, options.shard_bytes, plan.layout.packs_experts);
    plan.layout.indexed = begins.size() > 1;
    assign_shards(begins, plan.tensors);
  }
  set_layout_entries(plan.tensors, plan.layout);
  return plan;
}

const GgufEncoding& encoding_of(DType dtype) {
  if (dtype == DType::kF32) return *find_gguf_encoding("f32");
  return *find_gguf_encoding(dtype == DType::kF16 ? "f16" : "bf16");
}

// Writes tensors from the source, slice by slice.
class Copier {
 public:
  Copier(Backend& backend, const CheckpointSource& source, CheckpointWriter& writer)
      : backend_(backend), source_(source), writer_(writer) {}

  // False where a signal asked to stop.
  bool try_copy_tensor(const OutTensor& tensor) {
    errors_.push_back({.name = tensor.decl.name});
    for (const std::string& part : tensor.parts) {
      const CheckpointTensor& from = *source_.find(part);
      errors_.back().from = from.info.dtype_name;
      const bool done = tensor.decl.integer_bytes > 0 ? try_copy_bytes(tensor.decl, from)
                                                      : try_copy_values(tensor.decl, from);
      if (!done) return false;
    }
    return true;
  }
  std::vector<TensorError> take_errors() { return std::move(errors_); }

 private:
  bool try_copy_bytes(const TensorDecl& decl, const CheckpointTensor& from) {
    std::vector<std::byte> bytes(static_cast<size_t>(from.info.num_bytes()));
    source_.read_bytes(from, 0, bytes);
    writer_.append(decl.name, bytes);
    errors_.back().to = from.info.dtype_name;
    return !StopSignals::asked();
  }

  bool try_copy_values(const TensorDecl& decl, const CheckpointTensor& from) {
    const GgufEncoding& encoding = encoding_of(decl.dtype);
    errors_.back().to = encoding.type->name;
    const int64_t count = from.info.shape.num_elements();
    for (int64_t first = 0; first < count; first += kSliceElements) {
      if (StopSignals::asked()) return false;
      values_.resize(static_cast<size_t>(std::min(kSliceElements, count - first)));
      source_.read_f32(from, first, std::ssize(values_), values_.data());
      encode_values(backend_, encoding, values_, bytes_, errors_.back());
      writer_.append(decl.name, bytes_);
    }
    return true;
  }

  Backend& backend_;
  const CheckpointSource& source_;
  CheckpointWriter& writer_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
  std::vector<TensorError> errors_;
};

}  // namespace

std::optional<std::vector<TensorError>> write_checkpoint(Backend& backend,
                                                         const CheckpointSource& source,
                                                         const LoadedModel& names,
                                                         const std::string& dir,
                                                         const WriteOptions& options) {
  const FilePlan plan = plan_files(source, *names.weights, options);
  std::unordered_map<std::string_view, const OutTensor*> by_name;
  for (const OutTensor& tensor : plan.tensors) by_name[tensor.decl.name] = &tensor;
  CheckpointWriter writer(dir, plan.layout, plan.metadata);
  Copier copier(backend, source, writer);
  for (const TensorDecl& tensor : writer.tensors()) {
    if (!copier.try_copy_tensor(*by_name.at(tensor.name))) return std::nullopt;
  }
  writer.commit();
  return copier.take_errors();
}

}  // namespace strata::model
