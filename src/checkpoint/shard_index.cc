// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shard_index.h"

#include <fmt/format.h>

#include "base/files.h"
#include "checkpoint/faults.h"
#include "text/json_reader.h"

namespace strata {
namespace {

constexpr int64_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxShards = 10'000;

void read_weight_map(text::JsonReader& json, std::map<std::string, std::string>& shards) {
  json.begin_object();
  for (std::string name; json.next_key(name);) shards[name] = json.read_string();
}

void append_index_metadata(text::JsonReader& json,
                           std::vector<std::pair<std::string, std::string>>& metadata) {
  json.begin_object();
  for (std::string name; json.next_key(name);) {
    std::string value = json.read_compact_json();
    if (name != "total_size") metadata.emplace_back(std::move(name), std::move(value));
  }
}

// What the index says otherwise of a tensor that is in a shard; empty where nothing.
std::string find_index_fault(const ShardIndex& index, const std::string& tensor,
                             const std::string& shard) {
  const auto entry = index.weight_map.find(tensor);
  if (entry == index.weight_map.end()) {
    return fmt::format("tensor '{}' of shard '{}' is not in the index", tensor, shard);
  }
  if (entry->second == shard) return {};
  return fmt::format("tensor '{}' is in shard '{}', the index says '{}'", tensor, shard,
                     entry->second);
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

ShardIndex read_shard_index(const std::string& path) {
  const std::string text = read_file(path, kMaxIndexBytes);
  ShardIndex index;
  text::JsonReader json(text, path);
  bool has_map = false;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "weight_map") {
      has_map = true;
      read_weight_map(json, index.weight_map);
    } else if (key == "metadata" && json.peek_kind() == text::JsonReader::Kind::kObject) {
      append_index_metadata(json, index.metadata);
    } else {
      json.skip();
    }
  }
  json.end();
  if (!has_map) json.fail("wanted the key \"weight_map\"; not an index of shards?");
  return index;
}

std::set<std::string> checked_shard_names(const ShardIndex& index, FaultList& faults) {
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
  faults.throw_faults();
  return names;
}

void check_shard_index(const ShardIndex& index, std::span<const CheckpointTensor> tensors,
                       std::span<const std::string> shards, FaultList& faults) {
  std::set<std::string_view> seen;
  for (const CheckpointTensor& tensor : tensors) {
    const std::string& shard = shards[tensor.shard];
    if (!seen.insert(tensor.info.name).second) {
      faults.add(
          fmt::format("tensor '{}' is in shard '{}' and in another one", tensor.info.name, shard));
    } else if (std::string fault = find_index_fault(index, tensor.info.name, shard);
               !fault.empty()) {
      faults.add(std::move(fault));
    }
  }
  for (const auto& [name, shard] : index.weight_map) {
    if (!seen.contains(name))
      faults.add(fmt::format("tensor '{}' is not in shard '{}'", name, shard));
  }
}

}  // namespace strata
