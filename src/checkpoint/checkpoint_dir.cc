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
#include "text/json_reader.h"

namespace strata {
namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 100'000'000;
constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr size_t kMaxShards = 10'000;
constexpr size_t kMostTensors = 1 << 18;  // of all stacks; no model comes near

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
  const DType dtype = tensor.scaled || tensor.bnb4 ? DType::kBF16 : info.dtype;
  return TensorDecl{.name = info.name, .dtype = dtype, .shape = info.shape};
}

struct Index {
  std::map<std::string, std::string> weight_map;
  std::vector<std::pair<std::string, std::string>> metadata;
};

// A shard is a file of the directory itself: no folder, no way out of it.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Index read_index(const std::string& path) {
  const std::string text = read_file(path, kMaxIndexBytes);
  Index index;
  text::JsonReader json(text, path);
  bool has_map = false;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "weight_map") {
      has_map = true;
      json.begin_object();
      for (std::string name; json.next_key(name);) index.weight_map[name] = json.read_string();
    } else if (key == "metadata" && json.peek_kind() == text::JsonReader::Kind::kObject) {
      json.begin_object();
      for (std::string name; json.next_key(name);) {
        std::string value = json.read_raw();
        if (name != "total_size") index.metadata.emplace_back(std::move(name), std::move(value));
      }
    } else {
      json.skip();
    }
  }
  json.end();
  if (!has_map) json.fail("wanted the key \"weight_map\"; not an index of shards?");
  return index;
}

// In their order; an Error where one cannot be a file of the directory.
std::set<std::string> checked_shard_names(const Index& index, FaultList& faults) {
  std::set<std::string> names;
  for (const auto& [tensor, shard] : index.weight_map) names.insert(shard);
  if (names.size() > kMaxShards) {
    faults.add(fmt::format("names {} shards, at most {} are accepted", names.size(), kMaxShards));
  }
  for (const std::string& name : names) {
    if (!is_plain_file_name(name)) {
      faults.add(fmt::format("shard {}: wanted the name of a file in this directory",
                             text::json_quote(name)));
    }
  }
  faults.raise_if_any();
  return names;
}

// That index and shards agree both ways.
void check_index(const Index& index, std::span<const CheckpointTensor> tensors,
                 std::span<const std::string> shards, FaultList& faults) {
  std::set<std::string_view> seen;
  for (const CheckpointTensor& tensor : tensors) {
    const std::string& shard = shards[tensor.shard];
    const auto entry = index.weight_map.find(tensor.info.name);
    if (!seen.insert(tensor.info.name).second) {
      faults.add(
          fmt::format("tensor '{}' is in shard '{}' and in another one", tensor.info.name, shard));
    } else if (entry == index.weight_map.end()) {
      faults.add(
          fmt::format("tensor '{}' of shard '{}' is not in the index", tensor.info.name, shard));
    } else if (entry->second != shard) {
      faults.add(fmt::format("tensor '{}' is in shard '{}', the index says '{}'", tensor.info.name,
                             shard, entry->second));
    }
  }
  for (const auto& [name, shard] : index.weight_map) {
    if (!seen.contains(name))
      faults.add(fmt::format("tensor '{}' is not in shard '{}'", name, shard));
  }
}

std::map<std::string, std::vector<TensorDecl>> tensors_by_shard(const CheckpointLayout& layout) {
  std::map<std::string, std::vector<TensorDecl>> shards;
  if (!layout.indexed) shards[std::string(kSingle)];
  for (const auto& [tensor, shard] : layout.entries) {
    CHECK(is_plain_file_name(shard), shard);
    CHECK(layout.indexed != (shard == kSingle), "an index and a single file", shard);
    shards[shard].push_back(tensor);
  }
  return shards;
}

std::string index_text(const CheckpointLayout& layout) {
  int64_t total_size = 0;
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, shard] : layout.entries) {
    total_size += tensor.bytes();
    weight_map[tensor.name] = shard;
  }
  std::map<std::string, std::string> metadata(layout.index_metadata.begin(),
                                              layout.index_metadata.end());
  metadata["total_size"] = std::to_string(total_size);
  std::string out = "{\n  \"metadata\": {";
  for (const auto& [key, value] : metadata) text::append_json_member(out, "    ", key, value);
  out += "\n  },\n  \"weight_map\": {";
  for (const auto& [name, shard] : weight_map) {
    text::append_json_member(out, "    ", name, text::json_quote(shard));
  }
  return out + "\n  }\n}\n";
}

}  // namespace

CheckpointDir::CheckpointDir(std::string dir) : CheckpointSource(std::move(dir)) {
  if (file_exists(fmt::format("{}/{}", path_, kSingle))) {
    open_shard(std::string(kSingle));
  } else if (file_exists(fmt::format("{}/{}", path_, kIndex))) {
    indexed_ = true;
    open_indexed_shards();
  } else {
    throw Error(
        ErrorCode::kNotFound,
        fmt::format("{}: holds neither {} nor {}; wanted a Hugging Face model directory with "
                    "safetensors weights",
                    path_, kSingle, kIndex));
  }
  attach_scales();
  attach_bnb4_states();
  replace_stacks_by_layer_tensors();
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
    const auto parts = stacks[tensor.shard].empty() || tensor.scaled || tensor.bnb4
                           ? std::nullopt
                           : unstack_tensor(tensor.info, stacks[tensor.shard], where);
    if (!parts) {
      tensors.push_back(tensor);
      continue;
    }
    if (parts->size() > kMostTensors - std::min(kMostTensors, tensors.size())) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: its stacks have more than {} tensors", where, kMostTensors));
    }
    for (const TensorInfo& part : *parts) tensors.push_back({part, tensor.shard});
  }
  return tensors;
}

void CheckpointDir::replace_tensors(std::vector<CheckpointTensor> tensors) {
  erase_if([](const CheckpointTensor&) { return true; });
  FaultList faults(path_);
  for (CheckpointTensor& tensor : tensors) {
    if (find(tensor.info.name) != nullptr) {
      faults.add(fmt::format("tensor '{}' is there twice, in a stack and by itself or in two",
                             tensor.info.name));
    } else {
      add(std::move(tensor));
    }
  }
  faults.raise_if_any();
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

// Gives weights in few bits their scales, which leave the list of tensors. One without scales stays
// as it is, not readable.
void CheckpointDir::attach_scales() {
  FaultList faults(path_);
  std::set<std::string> joined;
  const std::optional<std::array<int64_t, 2>> block = read_fp8_block_from_config();
  for (CheckpointTensor& tensor : tensors_) {
    std::optional<BlockFormat> format = block_format(tensor.info);
    const CheckpointTensor* scale = format ? find_scale(tensor) : nullptr;
    if (scale == nullptr) continue;
    if (block && is_fp8(tensor)) format->block_rows = (*block)[0], format->block_cols = (*block)[1];
    const std::string fault = fit_format_to_scale(tensor.info, scale->info, *format);
    if (!fault.empty()) {
      faults.add(fault);
      continue;
    }
    tensor.scaled = {*format, scale->info, scale->shard};
    make_readable_as_f32(tensor.info, format->dims);
    joined.insert(scale->info.name);
    for (std::string& name : activation_scale_names(tensor.info.name))
      joined.insert(std::move(name));
  }
  faults.raise_if_any();
  if (joined.empty()) return;
  erase_if([&](const CheckpointTensor& t) { return joined.contains(t.info.name); });
}

// The same for bitsandbytes' 4 bits, which are found by their state.
void CheckpointDir::attach_bnb4_states() {
  std::set<std::string> joined;
  const auto find_stored = [&](const std::string& name) -> StoredTensorRef {
    const CheckpointTensor* part = find(name);
    if (part == nullptr) return {};
    return {&part->info, &files_[part->shard], part->shard};
  };
  for (CheckpointTensor& tensor : tensors_) {
    if (tensor.scaled) continue;
    tensor.bnb4 = read_bnb4_state(tensor.info, find_stored);
    if (tensor.bnb4 == nullptr) continue;
    for (std::string& name : bnb4_part_names(tensor.info.name)) joined.insert(std::move(name));
  }
  if (joined.empty()) return;
  for (CheckpointTensor& tensor : tensors_) {
    if (tensor.bnb4 == nullptr) continue;
    tensor.info.dtype_name = tensor.bnb4->type;
    make_readable_as_f32(tensor.info, {tensor.bnb4->rows, tensor.bnb4->cols});
  }
  erase_if([&](const CheckpointTensor& t) { return joined.contains(t.info.name); });
}

void CheckpointDir::open_shard(const std::string& name) {
  files_.emplace_back(path_ + "/" + name);
  shard_names_.push_back(name);
  for (const TensorInfo& info : files_.back().tensors()) {
    add({info, files_.size() - 1});
  }
}

void CheckpointDir::open_indexed_shards() {
  const std::string path = fmt::format("{}/{}", path_, kIndex);
  Index index = read_index(path);
  index_metadata_ = std::move(index.metadata);
  FaultList faults(path);
  const std::set<std::string> names = checked_shard_names(index, faults);
  for (const std::string& name : names) {
    if (file_exists(path_ + "/" + name)) {
      open_shard(name);
    } else {
      faults.add(fmt::format("shard '{}' is not in the directory", name));
    }
  }
  faults.raise_if_any();
  check_index(index, tensors_, shard_names_, faults);
  faults.raise_if_any();
}

void CheckpointDir::read(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                         void* raw_out) const {
  if (tensor.bnb4 != nullptr) {
    return read_bnb4_values(*tensor.bnb4, files_[tensor.shard], tensor.info,
                            files_[tensor.bnb4->absmax_shard], first_element, count,
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
  if (tensor.scaled || tensor.bnb4) return read(tensor, first_element, count, out);
  files_[tensor.shard].read_f32(tensor.info, first_element, count, out);
}

NarrowForm CheckpointDir::narrow_form(const CheckpointTensor& tensor) const {
  if (tensor.bnb4 != nullptr) return tensor.bnb4->form;
  return tensor.scaled ? scaled_narrow_form(tensor.scaled->format, tensor.scaled->scale)
                       : NarrowForm::kNone;
}

void CheckpointDir::read_quantised_rows(const CheckpointTensor& tensor, int64_t first_row,
                                        int64_t count, std::byte* out) const {
  const SafetensorsFile& file = files_[tensor.shard];
  if (tensor.bnb4 != nullptr) {
    return read_quantised_rows_of_bnb4(*tensor.bnb4, file, tensor.info,
                                       files_[tensor.bnb4->absmax_shard], first_row, count, out);
  }
  CHECK(tensor.scaled.has_value(), tensor.info.name);
  const auto& [format, scale, shard] = *tensor.scaled;
  read_quantised_rows_of_scaled(file, tensor.info, format, files_[shard], scale, first_row, count,
                                out);
}

std::string CheckpointDir::scan_for_unrepresentable_values(const CheckpointTensor& tensor,
                                                           bool codes) const {
  if (tensor.bnb4 != nullptr) {
    return scan_bnb4_for_unrepresentable_scales(*tensor.bnb4, tensor.info,
                                                files_[tensor.bnb4->absmax_shard]);
  }
  if (!tensor.scaled) return {};
  const auto& [format, scale, shard] = *tensor.scaled;
  return scan_scaled_for_unrepresentable_values(files_[tensor.shard], tensor.info, format,
                                                files_[shard], scale, codes);
}

void CheckpointDir::read_bytes(const CheckpointTensor& tensor, int64_t first_byte,
                               std::span<std::byte> out) const {
  files_[tensor.shard].read_bytes(tensor.info, first_byte, out);
}

CheckpointLayout CheckpointDir::layout() const {
  CheckpointLayout layout{.entries = {}, .indexed = indexed_, .index_metadata = index_metadata_};
  for (const CheckpointTensor& tensor : tensors_) {
    std::optional<TensorDecl> decl = saved_decl(tensor);
    if (decl) layout.entries.push_back({std::move(*decl), shard_names_[tensor.shard]});
  }
  return layout;
}

CheckpointWriter::CheckpointWriter(std::string dir, const CheckpointLayout& layout,
                                   std::map<std::string, std::string> metadata)
    : dir_(std::move(dir)) {
  make_folders(dir_);
  metadata["format"] = "pt";
  for (auto& [name, tensors] : tensors_by_shard(layout)) {
    writers_.emplace_back(dir_ + "/" + name, std::move(tensors), metadata);
    shard_names_.push_back(name);
    for (const TensorDecl& tensor : writers_.back().tensors()) {
      CHECK(shard_of_.emplace(tensor.name, writers_.size() - 1).second,
            "in two shards:", tensor.name);
      order_.push_back(tensor);
    }
  }
  if (layout.indexed) index_ = index_text(layout);
}

SafetensorsWriter& CheckpointWriter::writer_of(std::string_view name) {
  const auto found = shard_of_.find(std::string(name));
  CHECK(found != shard_of_.end(), "not declared:", name);
  return writers_[found->second];
}

void CheckpointWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  writer_of(name).append(name, bytes);
}

void CheckpointWriter::append_f32(std::string_view name, std::span<const float> values) {
  writer_of(name).append_f32(name, values);
}

void CheckpointWriter::append_view(std::string_view name, const TensorView& values) {
  writer_of(name).append_view(name, values);
}

// The single file goes too where shards replace it: it would be preferred to them.
void CheckpointWriter::remove_stale_index_and_single_file() const {
  remove_file(fmt::format("{}/{}", dir_, kIndex));
  if (!index_.empty()) remove_file(fmt::format("{}/{}", dir_, kSingle));
  sync_folder(dir_);
}

void CheckpointWriter::commit() {
  for (SafetensorsWriter& writer : writers_) writer.seal();
  if (index_.empty()) {
    writers_.front().commit();
    // A stale index would be found once the single file is gone.
    remove_stale_index_and_single_file();
    return;
  }
  AtomicFile index(fmt::format("{}/{}", dir_, kIndex));
  index.append(index_);
  index.seal();
  remove_stale_index_and_single_file();
  for (SafetensorsWriter& writer : writers_) writer.commit();
  index.commit();
}

}  // namespace strata
