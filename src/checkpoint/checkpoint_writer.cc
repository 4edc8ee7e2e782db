// SPDX-License-Identifier: Apache-2.0
// CheckpointWriter, of checkpoint/checkpoint_dir.h.
#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/shard_index.h"
#include "text/json_reader.h"

namespace strata {
namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

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

// By tensor, the name of its shard.
std::map<std::string, std::string> weight_map_of(const CheckpointLayout& layout) {
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, shard] : layout.entries) weight_map[tensor.name] = shard;
  return weight_map;
}

std::map<std::string, std::string> metadata_with_total_size(const CheckpointLayout& layout) {
  std::map<std::string, std::string> metadata(layout.index_metadata.begin(),
                                              layout.index_metadata.end());
  int64_t total_size = 0;
  for (const auto& [tensor, shard] : layout.entries) total_size += tensor.bytes();
  metadata["total_size"] = std::to_string(total_size);
  return metadata;
}

std::string index_text(const CheckpointLayout& layout) {
  std::string out = "{\n  \"metadata\": {";
  for (const auto& [key, value] : metadata_with_total_size(layout)) {
    text::append_json_member(out, "    ", key, value);
  }
  out += "\n  },\n  \"weight_map\": {";
  for (const auto& [name, shard] : weight_map_of(layout)) {
    text::append_json_member(out, "    ", name, text::json_quote(shard));
  }
  return out + "\n  }\n}\n";
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string dir, CheckpointLayout layout,
                                   std::map<std::string, std::string> metadata)
    : dir_(std::move(dir)) {
  make_folders(dir_);
  metadata["format"] = "pt";
  if (layout.packs_experts) packer_.emplace(layout);
  for (auto& [name, tensors] : tensors_by_shard(layout)) {
    writers_.emplace_back(dir_ + "/" + name, std::move(tensors), metadata);
    shard_names_.push_back(name);
    for (const TensorDecl& tensor : writers_.back().tensors()) {
      CHECK(shard_of_.emplace(tensor.name, writers_.size() - 1).second,
            "in two shards:", tensor.name);
      const auto parts = packer_ ? packer_->parts_of(tensor.name) : std::span<const TensorDecl>();
      order_.insert(order_.end(), parts.begin(), parts.end());
      if (parts.empty()) order_.push_back(tensor);
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
  if (!packer_ || packer_->find_part(name) == nullptr) return writer_of(name).append(name, bytes);
  packer_->append(name, bytes, [&](std::string_view whole, std::span<const std::byte> packed) {
    writer_of(whole).append(whole, packed);
  });
}

void CheckpointWriter::append_f32(std::string_view name, std::span<const float> values) {
  const TensorDecl* part = packer_ ? packer_->find_part(name) : nullptr;
  if (part == nullptr) return writer_of(name).append_f32(name, values);
  if (part->dtype == DType::kF32) return append(name, std::as_bytes(values));
  std::vector<uint16_t> narrow;
  narrow.reserve(values.size());
  for (const float value : values) narrow.push_back(narrow_to_16_bits(value, part->dtype));
  append(name, std::as_bytes(std::span(narrow)));
}

// The single file goes too where shards replace it: it would be preferred to them.
void CheckpointWriter::remove_stale_files() const {
  remove_file(fmt::format("{}/{}", dir_, kIndex));
  if (!index_.empty()) remove_file(fmt::format("{}/{}", dir_, kSingle));
  sync_folder(dir_);
}

void CheckpointWriter::commit() {
  for (SafetensorsWriter& writer : writers_) writer.seal();
  if (index_.empty()) {
    writers_.front().commit();
    // A stale index would be found once the single file is gone.
    remove_stale_files();
    return;
  }
  AtomicFile index(fmt::format("{}/{}", dir_, kIndex));
  index.append(index_);
  index.seal();
  remove_stale_files();
  for (SafetensorsWriter& writer : writers_) writer.commit();
  index.commit();
}

}  // namespace strata
