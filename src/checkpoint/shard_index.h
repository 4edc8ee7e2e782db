// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json of a checkpoint in several files: which tensor is in which shard.
#pragma once
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/source.h"

namespace strata {

class FaultList;

// What a shard may be called: a file of the directory itself, no folder, no way out of it.
bool is_plain_file_name(std::string_view name);

struct ShardIndex {
  std::map<std::string, std::string> weight_map;  // shards by tensor
  // "metadata" but total_size, as pairs of key and raw JSON value.
  std::vector<std::pair<std::string, std::string>> metadata;
};

ShardIndex read_shard_index(const std::string& path);

// The shards in their order; an Error where one cannot be a file of the directory.
std::set<std::string> checked_shard_names(const ShardIndex& index, FaultList& faults);

// Adds a fault for each tensor of which index and shards do not agree, both ways.
void check_shard_index(const ShardIndex& index, std::span<const CheckpointTensor> tensors,
                       std::span<const std::string> shards, FaultList& faults);

}  // namespace strata
