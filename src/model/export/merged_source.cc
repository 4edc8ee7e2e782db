// SPDX-License-Identifier: Apache-2.0
#include "model/export/merged_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/peft.h"
#include "model/adapter/io.h"
#include "model/adapter/match.h"
#include "model/weights/tensor_names.h"
#include "ops/elementwise.h"
#include "tensor/rounded.h"

namespace strata::model {
namespace {

// The adapter target that a layer's row of parameters is, -1 for none.
int find_row_target(const LayerStack& stack, const ParamRow* row) {
  for (size_t s = 0; s < stack.rows.size(); ++s) {
    for (const ParamRow& item : stack.rows[s].inner) {
      if (&item == row) return stack.target_of[s][static_cast<size_t>(row->key)];
    }
  }
  return -1;
}

// Which of the parameters whose outputs a target's B has in turn ("w1 w3") a parameter ("w3") is;
// nothing when none.
std::optional<int64_t> find_half(const LoraTarget& whole, const ParamRow& row) {
  if (whole.num_halves == 1 || row.lora.stacked.empty()) return std::nullopt;
  int64_t half = 0;
  for (std::string_view rest = whole.stacked; !rest.empty(); ++half) {
    const size_t space = rest.find(' ');
    if (rest.substr(0, space) == row.lora.stacked) return half;
    rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
  }
  return std::nullopt;
}

// The place of the first value that is not the other one rounded, nor that one this rounded; the
// number of values where there is none.
size_t find_first_mismatch(std::span<const float> own, DType own_dtype,
                           std::span<const float> other, DType other_dtype) {
  size_t at = 0;
  while (at < own.size() && (rounded_to(own[at], other_dtype) == other[at] ||
                             rounded_to(other[at], own_dtype) == own[at])) {
    ++at;
  }
  return at;
}

// How a slice of a copy differs from the tensor's, from element `first` on; empty where it does
// not.
std::string slice_difference(const TensorInfo& tensor, std::span<const float> own,
                             const TensorInfo& copy, std::span<const float> other, int64_t first) {
  const size_t at = find_first_mismatch(own, tensor.dtype, other, copy.dtype);
  if (at == own.size()) return {};
  return fmt::format(" differs from the model's '{}' at element {}: {} and {}", tensor.name,
                     first + static_cast<int64_t>(at), other[at], own[at]);
}

[[noreturn]] void refuse_base_copy(const std::string& dir, const TensorInfo& copy,
                                   const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("adapter: {}: tensor '{}'{}; the adapter belongs to another base model",
                          dir, copy.name, what));
}

void add_rounded(std::span<const double> changes, float* values) {
  for (size_t i = 0; i < changes.size(); ++i) {
    values[i] = static_cast<float>(static_cast<double>(values[i]) + changes[i]);
  }
}

// Null where there is none of the name.
const CheckpointLayout::Entry* find_entry(const CheckpointLayout& layout, const std::string& name) {
  const auto found = std::find_if(layout.entries.begin(), layout.entries.end(),
                                  [&](const auto& entry) { return entry.tensor.name == name; });
  return found == layout.entries.end() ? nullptr : &*found;
}

}  // namespace

MergedSource::MergedSource(Backend& backend, const LoadedModel& base,
                           std::span<const AdapterPart> adapters)
    : CheckpointSource(base.checkpoint->path()), backend_(backend), base_(base) {
  const CheckpointSource& source = *base.checkpoint;
  shard_names_.assign(source.shards().begin(), source.shards().end());
  for (const CheckpointTensor& tensor : source.tensors()) add(tensor);
  const ModelWeights& weights = *base.weights;
  embedding_ = weights.table()[weights.embedding_index()].name;
  head_ = weights.table()[weights.head_index()].name;
  const bool tied = base.config.tie_word_embeddings;
  if (tied) {
    const NameForm& form = find_name_form(source, base.config);
    embedding_ = name_in_form(form, kEmbeddingName);
    head_ = name_in_form(form, kHeadName);
  }
  for (const AdapterPart& part : adapters) add_adapter(part);
  if (tied && (is_changed(embedding_) || is_changed(head_))) untie_embeddings();
}

bool MergedSource::is_changed(std::string_view name) const {
  return pieces_.contains(std::string(name));
}

// Copies of base weights in an adapter say which model it was made for.
void MergedSource::check_base_copies(const std::string& dir, const PeftAdapter& peft) const {
  for (const PeftBaseCopy& copy : peft.base_copies()) {
    const bool is_head = copy.base_name == kHeadName;
    const CheckpointTensor* tensor = find(is_head ? head_ : embedding_);
    if (tensor == nullptr) tensor = find(is_head ? embedding_ : head_);
    CHECK(tensor != nullptr, copy.base_name);
    check_base_copy(dir, peft, copy.tensor, *tensor);
  }
}

void MergedSource::check_base_copy(const std::string& dir, const PeftAdapter& peft,
                                   const TensorInfo& copy, const CheckpointTensor& tensor) const {
  if (!(copy.shape == tensor.info.shape)) {
    refuse_base_copy(
        dir, copy,
        fmt::format(": {}, the base has {}", copy.shape_text(), tensor.info.shape_text()));
  }
  constexpr int64_t kElements = 1 << 20;
  const int64_t count = tensor.info.shape.num_elements();
  std::vector<float> own, other;
  for (int64_t first = 0; first < count; first += kElements) {
    own.resize(static_cast<size_t>(std::min(kElements, count - first)));
    other.resize(own.size());
    base_.checkpoint->read_f32(find_base_tensor(tensor), first, std::ssize(own), own.data());
    peft.file().read_f32(copy, first, std::ssize(other), other.data());
    const std::string difference = slice_difference(tensor.info, own, copy, other, first);
    if (!difference.empty()) refuse_base_copy(dir, copy, difference);
  }
}

void MergedSource::add_adapter(const AdapterPart& part) {
  const Adapter& adapter =
      adapters_.emplace_back(AdapterModules(backend_, base_, part.dir), part.weight);
  check_base_copies(part.dir, adapter.file.peft());
  Changes changes;
  const std::vector<MatchedModule>& modules = adapter.file.modules();
  for (size_t i = 0; i < modules.size(); ++i) {
    const auto [layer, target] = std::pair(modules[i].spec.layer, modules[i].spec.target);
    const int group = layer >= 0 ? layer : target == kEmbedding ? -1 : -2;
    changes[{layer, target}] = &changes_.emplace_back(Change{&adapter, i, group});
  }
  add_layer_pieces(changes);
  const ModelWeights& weights = *base_.weights;
  add_piece_outside_layers(embedding_, changes, kEmbedding);
  add_piece_outside_layers(head_, changes, kHead);
  if (!base_.config.per_layer_inputs) return;
  const size_t projection = weights.per_layer_inputs().param(kPerLayerProjection).index;
  add_piece_outside_layers(weights.table()[projection].name, changes, kPerLayerModelProjection);
}

void MergedSource::add_layer_pieces(const Changes& changes) {
  const LayerTable& layers = base_.weights->layers();
  for (const Parameter& parameter : base_.weights->table()) {
    if (parameter.layer < 0 || parameter.row == nullptr || parameter.shape.rank() != 2) continue;
    const LayerStack& stack = layers.stack_of(parameter.layer);
    const int own = find_row_target(stack, parameter.row);
    add_changed_piece(changes, parameter, own, 0);
    for (size_t t = 0; t < stack.targets.size(); ++t) {
      const LoraTarget& target = stack.targets[t];
      const std::optional<int64_t> half = find_half(target, *parameter.row);
      if (half)
        add_changed_piece(changes, parameter, static_cast<int>(t), *half * parameter.shape[0]);
      for (const TargetPart& part : target.parts) {
        if (part.target == own)
          add_changed_piece(changes, parameter, static_cast<int>(t), part.first_row);
      }
    }
  }
}

void MergedSource::add_changed_piece(const Changes& changes, const Parameter& parameter, int target,
                                     int64_t first_out) {
  const auto found = changes.find({static_cast<int>(parameter.layer), target});
  if (target < 0 || found == changes.end()) return;
  std::vector<Piece>& pieces = pieces_[parameter.name];
  for_each_stored_run(parameter, 0, parameter.shape[0],
                      [&](int64_t first, int64_t at, int64_t count) {
                        pieces.push_back({.change = found->second,
                                          .first_row = at,
                                          .rows = count,
                                          .expert = std::max(0, parameter.expert),
                                          .first_out = first_out + first});
                      });
}

void MergedSource::add_piece_outside_layers(const std::string& name, const Changes& changes,
                                            int target) {
  const auto found = changes.find({-1, target});
  if (found == changes.end()) return;
  const LoraTarget& of = base_.weights->layers().targets(-1)[static_cast<size_t>(target)];
  const int64_t rows = target == kEmbedding ? of.in : of.out;
  pieces_[name].push_back({.change = found->second, .rows = rows});
}

MergedSource::Factors MergedSource::read_factors(const Change& change) const {
  const std::unique_ptr<LoraAdapter> adapter = change.adapter->file.read_module(change.module);
  const LoraModule& module = adapter->modules().front();
  Factors factors;
  factors.rank = module.spec.rank;
  factors.is_embedding = module.is_embedding();
  factors.columns = factors.is_embedding ? module.target->out : module.target->in;
  factors.rows = module.target->out * module.target->num_halves;
  if (module.num_experts > 0) factors.rows = module.b.shape[1];
  factors.scale = module.spec.scale * change.adapter->weight;
  factors.a.resize(static_cast<size_t>(module.a.shape.num_elements()));
  factors.b.resize(static_cast<size_t>(module.b.shape.num_elements()));
  ops::to_host(backend_, module.a, factors.a);
  ops::to_host(backend_, module.b, factors.b);
  return factors;
}

void MergedSource::switch_factors(const std::vector<Piece>& pieces) const {
  for (const Piece& piece : pieces) {
    if (piece.change->group != group_) factors_.clear();
    group_ = piece.change->group;
    if (!factors_.contains(piece.change)) factors_[piece.change] = read_factors(*piece.change);
  }
}

// Both have the base's values, of which a tied file has one.
void MergedSource::untie_embeddings() {
  unties_ = true;
  for (const std::string& name : {embedding_, head_}) {
    if (find(name) != nullptr) continue;
    CheckpointTensor tensor = *find(name == head_ ? embedding_ : head_);
    tensor.info.name = name;
    add(std::move(tensor));
  }
}

const CheckpointTensor& MergedSource::find_base_tensor(const CheckpointTensor& tensor) const {
  const CheckpointTensor* found = base_.checkpoint->find(tensor.info.name);
  if (found != nullptr) return *found;
  found = base_.checkpoint->find(tensor.info.name == head_ ? embedding_ : head_);
  CHECK(found != nullptr, tensor.info.name);
  return *found;
}

// Adds the change of a row of the embedding, A [R, V] and B [D, R].
void MergedSource::Factors::add_embedding_row(size_t row, std::span<double> sum) const {
  const auto ranks = static_cast<size_t>(rank);
  const size_t rows_of_a = a.size() / ranks;
  for (size_t c = 0; c < sum.size(); ++c) {
    double dot = 0.0;
    for (size_t r = 0; r < ranks; ++r) {
      dot += static_cast<double>(b[c * ranks + r]) * a[r * rows_of_a + row];
    }
    sum[c] += scale * dot;
  }
}

// Adds the change of a row of an expert's matrix, or of the only one.
void MergedSource::Factors::add_matrix_row(int64_t expert, int64_t out,
                                           std::span<double> sum) const {
  const auto ranks = static_cast<size_t>(rank);
  const float* of_b = b.data() + static_cast<size_t>(expert * rows + out) * ranks;
  const float* of_a = a.data() + static_cast<size_t>(expert) * ranks * sum.size();
  for (size_t r = 0; r < ranks; ++r, of_a += sum.size()) {
    const double factor = scale * static_cast<double>(of_b[r]);
    for (size_t c = 0; c < sum.size(); ++c) sum[c] += factor * static_cast<double>(of_a[c]);
  }
}

// sum [columns] += scale * (B A) of a row, for each module.
void MergedSource::add_row_change(const std::vector<Piece>& pieces, int64_t row,
                                  std::span<double> sum) const {
  for (const Piece& piece : pieces) {
    if (row < piece.first_row || row >= piece.first_row + piece.rows) continue;
    const Factors& factors = factors_.at(piece.change);
    const int64_t local = row - piece.first_row;
    CHECK(factors.columns == std::ssize(sum), factors.columns, sum.size());
    if (factors.is_embedding) {
      factors.add_embedding_row(static_cast<size_t>(local), sum);
    } else {
      factors.add_matrix_row(piece.expert, piece.first_out + local, sum);
    }
  }
}

void MergedSource::add_row_change_rounded(const std::vector<Piece>& pieces, int64_t row,
                                          int64_t columns, int64_t first_element,
                                          std::span<float> values) const {
  std::vector<double> sum(static_cast<size_t>(columns), 0.0);
  add_row_change(pieces, row, sum);
  const int64_t begin = std::max(row * columns, first_element);
  const int64_t end = std::min((row + 1) * columns, first_element + std::ssize(values));
  add_rounded(std::span(sum).subspan(static_cast<size_t>(begin - row * columns),
                                     static_cast<size_t>(end - begin)),
              values.data() + begin - first_element);
}

void MergedSource::read_f32(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                            float* out) const {
  base_.checkpoint->read_f32(find_base_tensor(tensor), first_element, count, out);
  const auto found = pieces_.find(tensor.info.name);
  if (found == pieces_.end() || count == 0) return;
  switch_factors(found->second);
  const Shape& shape = tensor.info.shape;
  const int64_t columns = shape[shape.rank() - 1];
  const int64_t first_row = first_element / columns;
  const int64_t last_row = (first_element + count + columns - 1) / columns;
  backend_.run_on_host(last_row - first_row, [&](int64_t item) {
    add_row_change_rounded(found->second, first_row + item, columns, first_element,
                           {out, static_cast<size_t>(count)});
  });
}

void MergedSource::read(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                        void* raw_out) const {
  if (is_changed(tensor.info.name)) {
    return read_f32(tensor, first_element, count, static_cast<float*>(raw_out));
  }
  base_.checkpoint->read(find_base_tensor(tensor), first_element, count, raw_out);
}

void MergedSource::read_bytes(const CheckpointTensor& tensor, int64_t first_byte,
                              std::span<std::byte> out) const {
  CHECK(!is_changed(tensor.info.name), tensor.info.name);
  base_.checkpoint->read_bytes(find_base_tensor(tensor), first_byte, out);
}

CheckpointLayout MergedSource::layout() const {
  CheckpointLayout layout = base_.checkpoint->layout();
  if (!unties_) return layout;
  for (const std::string& name : {embedding_, head_}) {
    if (find_entry(layout, name) != nullptr) continue;
    const std::string& other = name == head_ ? embedding_ : head_;
    const CheckpointLayout::Entry* entry_of_other = find_entry(layout, other);
    CHECK(entry_of_other != nullptr, other);
    CheckpointLayout::Entry entry = *entry_of_other;
    entry.tensor.name = name;
    layout.entries.push_back(std::move(entry));
  }
  return layout;
}

}  // namespace strata::model
