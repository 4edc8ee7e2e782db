// SPDX-License-Identifier: Apache-2.0
#include "model/adapter/base_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace strata::model {
namespace {

const std::string kTypes = "strata.base_types";
const std::string kHash = "strata.base_numbers";
constexpr std::string_view kNf4 = " nf4";  // behind a count
const std::string kRopeTable = "strata.rope_table";

std::optional<std::string> find_metadata(const PeftAdapter& peft, const std::string& key) {
  const auto& metadata = peft.file().metadata();
  const auto found = metadata.find(key);
  // Hostile files are shown in messages.
  constexpr size_t kMost = 400;
  if (found == metadata.end() || found->second.size() > kMost) return std::nullopt;
  return found->second;
}

// "29 Q4_0, 1 Q8_0"
std::string types_text(const std::map<std::string, int64_t>& counts) {
  std::string text;
  for (const auto& [type, count] : counts) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, type);
  }
  return text;
}

// Whose tables a run has one of; null: none has two.
const RopeConfig* find_longrope(const ModelConfig& config) {
  for (const RopeSpec& rope : config.ropes) {
    if (rope.config.type == RopeType::kLongrope) return &rope.config;
  }
  return nullptr;
}

std::string table_of(const RopeConfig& rope) { return rope.uses_long_factors ? "long" : "short"; }

// The same however the tensors are divided into files.
std::string hash_sorted(std::vector<std::string> tensors) {
  std::sort(tensors.begin(), tensors.end());
  std::string all;
  for (const std::string& tensor : tensors) all += tensor;
  return fmt::format("{:016x}", hash_name(all.data(), all.size()));
}

}  // namespace

BaseFingerprint base_fingerprint(const CheckpointSource& source) {
  std::map<std::string, int64_t> counts;
  std::vector<std::string> narrow;
  for (const CheckpointTensor& tensor : source.tensors()) {
    const TensorInfo& info = tensor.info;
    if (!info.readable || info.dims.size() < 2) continue;
    ++counts[info.dtype_name];
    if (info.dtype_name == dtype_name(info.dtype)) continue;
    narrow.push_back(fmt::format("{} {} {};", info.name, info.dtype_name, info.shape_text()));
  }
  return {.types = types_text(counts), .hash = hash_sorted(std::move(narrow))};
}

std::optional<BaseFingerprint> saved_base_fingerprint(const PeftAdapter& peft) {
  const auto types = find_metadata(peft, kTypes);
  const auto hash = find_metadata(peft, kHash);
  if (!types || !hash) return std::nullopt;
  return BaseFingerprint{*types, *hash};
}

std::optional<std::string> saved_rope_table(const PeftAdapter& peft) {
  auto table = find_metadata(peft, kRopeTable);
  if (table != "short" && table != "long") return std::nullopt;
  return table;
}

std::map<std::string, std::string> base_fingerprint_metadata(const LoadedModel& model) {
  std::map<std::string, std::string> metadata;
  if (const RopeConfig* rope = find_longrope(model.config)) metadata[kRopeTable] = table_of(*rope);
  if (model.checkpoint == nullptr) return metadata;
  const BaseFingerprint numbers = base_fingerprint(*model.checkpoint);
  metadata[kTypes] = numbers.types;
  metadata[kHash] = numbers.hash;
  return metadata;
}

std::string base_mismatch_warning(const PeftAdapter& peft, const std::string& dir,
                                  const CheckpointSource& source) {
  const auto own = saved_base_fingerprint(peft);
  if (!own) return {};
  const BaseFingerprint now = base_fingerprint(source);
  if (own->hash == now.hash) return {};
  const bool wants_nf4 =
      own->types.find(kNf4) != std::string::npos && now.types.find(kNf4) == std::string::npos;
  return fmt::format(
      "adapter: {}: it was trained over a base with matrices in {}, and {} has {}: over other "
      "numbers than its own it may be less exact{}",
      dir, own->types, source.path(), now.types,
      wants_nf4 ? "; strata convert --type nf4 writes a base with its own" : "");
}

std::string rope_mismatch_warning(const PeftAdapter& peft, const std::string& dir,
                                  const ModelConfig& config) {
  const auto own = saved_rope_table(peft);
  const RopeConfig* rope = find_longrope(config);
  if (!own || rope == nullptr || *own == table_of(*rope)) return {};
  return fmt::format(
      "adapter: {}: it was trained with the {} factors of RoPE, and this run has the {} ones, with "
      "which it may be less exact: --context (of train and eval --max-length) of {} {} takes its "
      "own",
      dir, *own, table_of(*rope), *own == "long" ? "more than" : "at most",
      rope->original_max_position_embeddings);
}

}  // namespace strata::model
