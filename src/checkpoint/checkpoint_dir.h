// SPDX-License-Identifier: Apache-2.0
// CheckpointDir: the weights of a Hugging Face directory, one model.safetensors or the shards that
// model.safetensors.index.json names, seen as one list of named tensors. The constructor reads all
// headers and checks that index and shards agree both ways; all faults come in one Error. A tensor
// of 8- or 4-bit floats with scales by block (checkpoint/block_scales.h) is read as F32 and saved
// as BF16; its scales are no tensors of their own. Tensors that hold a stack of layers
// (checkpoint/stacks.h) are seen as those of its layers, and those that hold all experts of a layer
// as gpt-oss' files do (checkpoint/packed_experts.h) as those of each expert. Any thread may read.
// CheckpointWriter: the way back, with the same names, types, shapes and shard assignment.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/source.h"
#include "checkpoint/stacks.h"

namespace strata {

class FaultList;

class CheckpointDir final : public CheckpointSource {
 public:
  explicit CheckpointDir(std::string dir);

  // As SafetensorsFile.
  void read(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
            void* raw_out) const override;
  void read_f32(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                float* out) const override;
  [[nodiscard]] NarrowForm narrow_form(const CheckpointTensor& tensor) const override;
  void read_quantised_rows(const CheckpointTensor& tensor, int64_t first_row, int64_t count,
                           std::byte* out) const override;
  [[nodiscard]] std::string scan_for_unrepresentable_values(const CheckpointTensor& tensor,
                                                            bool codes) const override;
  void read_bytes(const CheckpointTensor& tensor, int64_t first_byte,
                  std::span<std::byte> out) const override;
  [[nodiscard]] CheckpointLayout layout() const override;

 private:
  void add_indexed_shards();
  // Opens the file and lists its tensors.
  void add_shard(const std::string& name);
  void move_scales_to_weights();
  void move_bnb4_states_to_weights();
  void move_nvfp4_scales_to_weights();
  void drop_cache_scales_of_quantised();
  void erase_named(const std::set<std::string>& names);
  void replace_stacks_by_layer_tensors();
  [[nodiscard]] std::vector<CheckpointTensor> unstacked_tensors(
      std::span<const LayerStacks> stacks) const;  // by file
  void replace_packed_experts_by_experts();
  void replace_tensors(std::vector<CheckpointTensor> tensors);
  // As config.json says, where any tensor is in FP8.
  [[nodiscard]] std::optional<std::array<int64_t, 2>> read_fp8_block_from_config() const;
  // The tensor's format and scale; nothing where it has none, or (a fault) one that does not fit.
  [[nodiscard]] std::optional<CheckpointTensor::Scaled> find_scaled(
      const CheckpointTensor& tensor, const std::optional<std::array<int64_t, 2>>& fp8_block,
      FaultList& faults) const;
  [[nodiscard]] const CheckpointTensor* find_scale(const CheckpointTensor& tensor) const;
  void read_bytes_of_packed(const CheckpointTensor& tensor, int64_t first_byte,
                            std::span<std::byte> out) const;

  bool indexed_ = false;
  std::vector<std::pair<std::string, std::string>> index_metadata_;
  std::vector<SafetensorsFile> files_;
};

// Writes the weights of a directory. Every shard is completed under a temporary name before the
// first one appears, and the index comes last; where a directory holds another checkpoint, its
// index and the single file go first, so that a crash between the renames leaves a directory that
// does not load, never one that mixes two checkpoints. Other files of the directory are left alone.
// One thread.
class CheckpointWriter {
 public:
  // Creates `dir` when it is not there.
  // `metadata` is of each file, besides {"format": "pt"}.
  CheckpointWriter(std::string dir, CheckpointLayout layout,
                   std::map<std::string, std::string> metadata = {});

  // In the order in which the data is wanted: of the layout, so that experts that files have in one
  // tensor are asked for one by one.
  [[nodiscard]] std::span<const TensorDecl> tensors() const { return order_; }
  // As SafetensorsWriter.
  void append(std::string_view name, std::span<const std::byte> bytes);
  void append_f32(std::string_view name, std::span<const float> values);
  void commit();

 private:
  SafetensorsWriter& writer_of(std::string_view name);
  void remove_stale_files() const;

  std::string dir_;
  std::optional<ExpertPacker> packer_;
  std::string index_;  // its text; empty for a single file
  std::vector<std::string> shard_names_;
  std::vector<SafetensorsWriter> writers_;
  std::vector<TensorDecl> order_;
  std::unordered_map<std::string, size_t> shard_of_;
};

}  // namespace strata
