// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_dir.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/bnb4.h"
#include "checkpoint/faults.h"
#include "checkpoint/nvfp4.h"
#include "checkpoint/shard_index.h"
#include "text/json_reader.h"

namespace strata {
namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr size_t kMostTensors = 1 << 18;  // of all stacks; no model comes near

// Whether it is in few bits, with scales; of parts of packed experts see ExpertPart.
bool is_quantised(const CheckpointTensor& tensor) {
  return tensor.scaled || tensor.bnb4 != nullptr || tensor.nvfp4 != nullptr;
}

bool is_fp8(const CheckpointTensor& tensor) { return tensor.info.dtype_name == "F8_E4M3"; }

void make_readable_as_f32(TensorInfo& info, std::vector<int64_t> dims) {
  info.readable = true;
  info.dtype = DType::kF32;
  info.dims = std::move(dims);
  info.shape = Shape();
  for (const int64_t dim : info.dims) info.shape.push_back(dim);
}

// As it is saved; nothing for one that cannot be.
std::optional<TensorDecl> saved_decl(const CheckpointTensor& tensor) {
  const TensorInfo& info = tensor.info;
  const int integer_bytes = info.integer_bytes();
  if (integer_bytes > 0 && std::ssize(info.dims) <= kMaxRank) {
    Shape shape;
    for (const int64_t dim : info.dims) shape.push_back(dim);
    return TensorDecl{.name = info.name, .shape = shape, .integer_bytes = integer_bytes};
  }
  if (!info.readable) return std::nullopt;
  const bool is_narrow =
      is_quantised(tensor) || (tensor.packed && tensor.packed->whole->scaled.has_value());
  const DType dtype = is_narrow ? DType::kBF16 : info.dtype;
  return TensorDecl{.name = info.name, .dtype = dtype, .shape = info.shape};
}

// Nulls where there is no such tensor.
StoredTensorRef stored_ref(const CheckpointTensor* tensor, std::span<const SafetensorsFile> files) {
  if (tensor == nullptr) return {};
  return {&tensor->info, &files[tensor->shard], tensor->shard};
}

// Those of the stacks so far, and of one more.
void check_num_tensors(size_t have, size_t added, const std::string& where) {
  if (added <= kMostTensors - std::min(kMostTensors, have)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: its stacks have more than {} tensors", where, kMostTensors));
}

}  // namespace

CheckpointDir::CheckpointDir(std::string dir) : CheckpointSource(std::move(dir)) {
  if (file_exists(fmt::format("{}/{}", path_, kSingle))) {
    add_shard(std::string(kSingle));
  } else if (file_exists(fmt::format("{}/{}", path_, kIndex))) {
    indexed_ = true;
    add_indexed_shards();
  } else {
    throw Error(
        ErrorCode::kNotFound,
        fmt::format("{}: holds neither {} nor {}; wanted a Hugging Face model directory with "
                    "safetensors weights",
                    path_, kSingle, kIndex));
  }
  move_scales_to_weights();
  move_bnb4_states_to_weights();
  move_nvfp4_scales_to_weights();
  drop_cache_scales_of_quantised();
  replace_stacks_by_layer_tensors();
  replace_packed_experts_by_experts();
}

// Stacks become the tensors of their layers, in their place.
void CheckpointDir::replace_stacks_by_layer_tensors() {
  std::vector<LayerStacks> stacks;  // by file
  bool any = false;
  for (const SafetensorsFile& file : files_) {
    const auto found = file.metadata().find(kStacksKey);
    const bool has = found != file.metadata().end();
    stacks.push_back(has ? parse_stacks(found->second, file.path()) : LayerStacks());
    any = any || has;
  }
  if (any) replace_tensors(unstacked_tensors(stacks));
}

std::vector<CheckpointTensor> CheckpointDir::unstacked_tensors(
    std::span<const LayerStacks> stacks) const {
  std::vector<CheckpointTensor> tensors;
  for (const CheckpointTensor& tensor : tensors_) {
    const std::string& where = files_[tensor.shard].path();
    const auto parts = stacks[tensor.shard].empty() || is_quantised(tensor)
                           ? std::nullopt
                           : unstack_tensor(tensor.info, stacks[tensor.shard], where);
    if (!parts) {
      tensors.push_back(tensor);
      continue;
    }
    check_num_tensors(tensors.size(), parts->size(), where);
    for (const TensorInfo& part : *parts) tensors.push_back({part, tensor.shard});
  }
  return tensors;
}

// Tensors that hold all experts of a layer become those of its experts, in their place.
void CheckpointDir::replace_packed_experts_by_experts() {
  std::vector<CheckpointTensor> tensors;
  bool any = false;
  for (const CheckpointTensor& tensor : tensors_) {
    const std::string_view experts = experts_of_packed_tensor(tensor.info.name);
    const bool is_packed = !experts.empty() && (have_llama4_name(experts) ||
                                                find(packed_bias_name(experts)) != nullptr);
    std::vector<CheckpointTensor> parts =
        is_packed ? split_into_experts(tensor) : std::vector<CheckpointTensor>();
    if (parts.empty()) parts.push_back(tensor);
    any = any || parts.size() > 1 || parts[0].packed;
    check_num_tensors(tensors.size(), parts.size(), path_);
    for (CheckpointTensor& part : parts) tensors.push_back(std::move(part));
  }
  if (any) replace_tensors(std::move(tensors));
}

void CheckpointDir::replace_tensors(std::vector<CheckpointTensor> tensors) {
  erase_if([](const CheckpointTensor&) { return true; });
  FaultList faults(path_);
  for (CheckpointTensor& tensor : tensors) {
    if (find(tensor.info.name) != nullptr) {
      faults.add(
          fmt::format("tensor '{}' is there twice, in a stack or among all experts of a "
                      "layer and by itself, or in two",
                      tensor.info.name));
    } else {
      add(std::move(tensor));
    }
  }
  faults.throw_faults();
}

const CheckpointTensor* CheckpointDir::find_scale(const CheckpointTensor& tensor) const {
  for (const std::string& name : scale_names(tensor.info)) {
    const CheckpointTensor* scale = find(name);
    if (scale != nullptr) return scale;
  }
  return nullptr;
}

std::optional<std::array<int64_t, 2>> CheckpointDir::read_fp8_block_from_config() const {
  const std::string config = path_ + "/config.json";
  if (std::none_of(tensors_.begin(), tensors_.end(), is_fp8) || !file_exists(config)) return {};
  return parse_config_block_size(read_file(config, kMaxConfigBytes), config);
}

std::optional<CheckpointTensor::Scaled> CheckpointDir::find_scaled(
    const CheckpointTensor& tensor, const std::optional<std::array<int64_t, 2>>& fp8_block,
    FaultList& faults) const {
  std::optional<BlockFormat> format = block_format(tensor.info);
  const CheckpointTensor* scale = format ? find_scale(tensor) : nullptr;
  if (scale == nullptr) return std::nullopt;
  if (fp8_block && is_fp8(tensor)) {
    format->block_rows = (*fp8_block)[0], format->block_cols = (*fp8_block)[1];
  }
  std::string fault = fit_format(tensor.info, scale->info, *format);
  if (fault.empty()) return CheckpointTensor::Scaled{*format, scale->info, scale->shard};
  faults.add(std::move(fault));
  return std::nullopt;
}

// Gives weights in few bits their scales, which leave the list of tensors. One without scales stays
// as it is, not readable.
void CheckpointDir::move_scales_to_weights() {
  FaultList faults(path_);
  std::set<std::string> joined;
  const std::optional<std::array<int64_t, 2>> block = read_fp8_block_from_config();
  for (CheckpointTensor& tensor : tensors_) {
    std::optional<CheckpointTensor::Scaled> scaled = find_scaled(tensor, block, faults);
    if (!scaled) continue;
    joined.insert(scaled->scale.name);
    std::string name = name_with_scales(tensor.info);
    if (name != tensor.info.name && find(name) != nullptr) {
      faults.add(fmt::format("tensor '{}' is there twice, as it is and in blocks", name));
    }
    tensor.info.name = std::move(name);
    make_readable_as_f32(tensor.info, scaled->format.dims);
    tensor.scaled = std::move(scaled);
    for (std::string& name : activation_scale_names(tensor.info.name))
      joined.insert(std::move(name));
  }
  faults.throw_faults();
  erase_named(joined);
}

// The same for bitsandbytes' 4 bits, which are found by their state.
void CheckpointDir::move_bnb4_states_to_weights() {
  std::set<std::string> joined;
  const auto find_stored = [&](const std::string& name) { return stored_ref(find(name), files_); };
  for (CheckpointTensor& tensor : tensors_) {
    if (tensor.scaled) continue;
    tensor.bnb4 = read_bnb4_state(tensor.info, find_stored);
    if (tensor.bnb4 == nullptr) continue;
    for (std::string& name : bnb4_part_names(tensor.info.name)) joined.insert(std::move(name));
  }
  for (CheckpointTensor& tensor : tensors_) {
    if (tensor.bnb4 == nullptr) continue;
    tensor.info.dtype_name = tensor.bnb4->type;
    make_readable_as_f32(tensor.info, {tensor.bnb4->rows, tensor.bnb4->cols});
  }
  erase_named(joined);
}

// The same for NVFP4, which is found by its scales.
void CheckpointDir::move_nvfp4_scales_to_weights() {
  std::set<std::string> joined;
  const auto find_stored = [&](const std::string& name) { return stored_ref(find(name), files_); };
  for (CheckpointTensor& tensor : tensors_) {
    if (!is_quantised(tensor)) tensor.nvfp4 = read_nvfp4_state(tensor.info, find_stored);
  }
  FaultList faults(path_);
  for (CheckpointTensor& tensor : tensors_) {
    if (tensor.nvfp4 == nullptr) continue;
    for (std::string& name : nvfp4_part_names(tensor.info)) joined.insert(std::move(name));
    std::string name = nvfp4_weight_name(tensor.info);
    for (std::string& other : activation_scale_names(name)) joined.insert(std::move(other));
    if (name != tensor.info.name && find(name) != nullptr) {
      faults.add(fmt::format("tensor '{}' is there twice, as it is and packed", name));
    }
    tensor.info.name = std::move(name);
    tensor.info.dtype_name = "NVFP4";
    make_readable_as_f32(tensor.info, {tensor.nvfp4->rows, tensor.nvfp4->cols});
  }
  faults.throw_faults();
  erase_named(joined);
}

void CheckpointDir::drop_cache_scales_of_quantised() {
  if (std::none_of(tensors_.begin(), tensors_.end(), is_quantised)) return;
  erase_if([](const CheckpointTensor& tensor) { return is_cache_scale(tensor.info.name); });
}

void CheckpointDir::erase_named(const std::set<std::string>& names) {
  if (names.empty()) return;
  erase_if([&](const CheckpointTensor& tensor) { return names.contains(tensor.info.name); });
}

void CheckpointDir::add_shard(const std::string& name) {
  files_.emplace_back(path_ + "/" + name);
  shard_names_.push_back(name);
  for (const TensorInfo& info : files_.back().tensors()) {
    add({info, files_.size() - 1});
  }
}

void CheckpointDir::add_indexed_shards() {
  const std::string path = fmt::format("{}/{}", path_, kIndex);
  ShardIndex index = read_shard_index(path);
  index_metadata_ = std::move(index.metadata);
  FaultList faults(path);
  const std::set<std::string> names = checked_shard_names(index, faults);
  for (const std::string& name : names) {
    if (file_exists(path_ + "/" + name)) {
      add_shard(name);
    } else {
      faults.add(fmt::format("shard '{}' is not in the directory", name));
    }
  }
  faults.throw_faults();
  check_shard_index(index, tensors_, shard_names_, faults);
  faults.throw_faults();
}

void CheckpointDir::read(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                         void* raw_out) const {
  if (tensor.packed) {
    const CheckpointTensor& whole = *tensor.packed->whole;
    return read_expert_part(
        *tensor.packed, dtype_bytes(tensor.info.dtype), first_element, count,
        [&](int64_t first, int64_t some, std::byte* out) { read(whole, first, some, out); },
        static_cast<std::byte*>(raw_out));
  }
  if (tensor.bnb4 != nullptr) {
    return read_bnb4_values(*tensor.bnb4, files_[tensor.shard], tensor.info,
                            files_[tensor.bnb4->absmax_shard], first_element, count,
                            static_cast<float*>(raw_out));
  }
  if (tensor.nvfp4 != nullptr) {
    return read_nvfp4_values(*tensor.nvfp4, files_[tensor.shard], tensor.info,
                             files_[tensor.nvfp4->scale_shard], first_element, count,
                             static_cast<float*>(raw_out));
  }
  if (tensor.scaled) {
    const auto& [format, scale, shard] = *tensor.scaled;
    return read_dequantised(files_[tensor.shard], tensor.info, format, files_[shard], scale,
                            first_element, count, static_cast<float*>(raw_out));
  }
  files_[tensor.shard].read(tensor.info, first_element, count, raw_out);
}

void CheckpointDir::read_f32(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                             float* out) const {
  if (tensor.packed) {
    const CheckpointTensor& whole = *tensor.packed->whole;
    return read_expert_part(
        *tensor.packed, dtype_bytes(DType::kF32), first_element, count,
        [&](int64_t first, int64_t some, std::byte* values) {
          read_f32(whole, first, some, reinterpret_cast<float*>(values));
        },
        reinterpret_cast<std::byte*>(out));
  }
  if (is_quantised(tensor)) return read(tensor, first_element, count, out);
  files_[tensor.shard].read_f32(tensor.info, first_element, count, out);
}

NarrowForm CheckpointDir::narrow_form(const CheckpointTensor& tensor) const {
  if (tensor.packed) {
    return tensor.packed->transposed ? NarrowForm::kNone : narrow_form(*tensor.packed->whole);
  }
  if (tensor.bnb4 != nullptr) return tensor.bnb4->form;
  if (tensor.nvfp4 != nullptr) return tensor.nvfp4->form;
  return tensor.scaled ? scaled_narrow_form(tensor.scaled->format, tensor.scaled->scale)
                       : NarrowForm::kNone;
}

void CheckpointDir::read_quantised_rows(const CheckpointTensor& tensor, int64_t first_row,
                                        int64_t count, std::byte* out) const {
  if (tensor.packed) {
    const CheckpointTensor& whole = *tensor.packed->whole;
    return read_expert_rows(
        *tensor.packed, narrow_layout(narrow_form(whole)).row_bytes(tensor.packed->inputs),
        first_row, count,
        [&](int64_t first, int64_t some, std::byte* rows) {
          read_quantised_rows(whole, first, some, rows);
        },
        out);
  }
  const SafetensorsFile& file = files_[tensor.shard];
  if (tensor.bnb4 != nullptr) {
    return read_quantised_rows_of_bnb4(*tensor.bnb4, file, tensor.info,
                                       files_[tensor.bnb4->absmax_shard], first_row, count, out);
  }
  if (tensor.nvfp4 != nullptr) {
    return read_quantised_rows_of_nvfp4(*tensor.nvfp4, file, tensor.info,
                                        files_[tensor.nvfp4->scale_shard], first_row, count, out);
  }
  CHECK(tensor.scaled.has_value(), tensor.info.name);
  const auto& [format, scale, shard] = *tensor.scaled;
  read_quantised_rows_of_scaled(file, tensor.info, format, files_[shard], scale, first_row, count,
                                out);
}

std::string CheckpointDir::scan_for_unrepresentable_values(const CheckpointTensor& tensor,
                                                           bool codes) const {
  if (tensor.packed) {  // the first expert's speaks for all, which are looked through once
    if (tensor.packed->expert > 0) return {};
    return scan_for_unrepresentable_values(*tensor.packed->whole, codes);
  }
  if (tensor.bnb4 != nullptr) {
    return scan_bnb4_for_unrepresentable_scales(*tensor.bnb4, tensor.info,
                                                files_[tensor.bnb4->absmax_shard]);
  }
  if (tensor.nvfp4 != nullptr) {
    return scan_nvfp4_for_unrepresentable_scales(*tensor.nvfp4, files_[tensor.nvfp4->scale_shard]);
  }
  if (!tensor.scaled) return {};
  const auto& [format, scale, shard] = *tensor.scaled;
  return scan_scaled_for_unrepresentable_values(files_[tensor.shard], tensor.info, format,
                                                files_[shard], scale, codes);
}

void CheckpointDir::read_bytes(const CheckpointTensor& tensor, int64_t first_byte,
                               std::span<std::byte> out) const {
  if (tensor.packed) return read_bytes_of_packed(tensor, first_byte, out);
  files_[tensor.shard].read_bytes(tensor.info, first_byte, out);
}

// Reads a part's bytes as the whole tensor has them; those of a matrix in few bits are its codes.
void CheckpointDir::read_bytes_of_packed(const CheckpointTensor& tensor, int64_t first_byte,
                                         std::span<std::byte> out) const {
  ExpertPart part = *tensor.packed;
  const CheckpointTensor& whole = *part.whole;
  const int64_t unit = whole.scaled ? 1 : dtype_bytes(tensor.info.dtype);
  if (whole.scaled) part.inputs /= whole.scaled->format.elements_per_byte;
  const int64_t first = first_byte / unit;
  const int64_t end = (first_byte + std::ssize(out) + unit - 1) / unit;
  std::vector<std::byte> units(static_cast<size_t>((end - first) * unit));
  const auto read_whole = [&](int64_t from, int64_t count, std::byte* bytes) {
    read_bytes(whole, from * unit, {bytes, static_cast<size_t>(count * unit)});
  };
  read_expert_part(part, unit, first, end - first, read_whole, units.data());
  std::copy_n(units.begin() + (first_byte - first * unit), out.size(), out.begin());
}

CheckpointLayout CheckpointDir::layout() const {
  CheckpointLayout layout{.entries = {}, .indexed = indexed_, .index_metadata = index_metadata_};
  for (const CheckpointTensor& tensor : tensors_) {
    std::optional<TensorDecl> decl = saved_decl(tensor);
    if (decl) layout.entries.push_back({std::move(*decl), shard_names_[tensor.shard]});
    layout.packs_experts = layout.packs_experts || tensor.packed;
  }
  return layout;
}

}  // namespace strata
