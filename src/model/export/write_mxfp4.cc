// SPDX-License-Identifier: Apache-2.0
// Source of the form: HF integrations/mxfp4.py, quantization_config of openai/gpt-oss-20b.
#include "model/export/write_mxfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <unordered_map>

#include "base/error.h"
#include "base/stop.h"
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/packed_experts.h"

namespace strata::model {
namespace {

constexpr int64_t kBlock = 32;      // elements
constexpr int64_t kCodeBytes = 16;  // of a block
constexpr std::string_view kBlocks = "_blocks";
constexpr std::string_view kScales = "_scales";

// Two elements a byte: ggml's have elements i and i + 16, these 2 i and 2 i + 1, the first one low.
void copy_codes(const std::byte* from, std::byte* to) {
  const auto code = [&](int64_t i) {
    return i < kCodeBytes ? from[i] & std::byte{0x0f} : from[i - kCodeBytes] >> 4;
  };
  for (int64_t i = 0; i < kCodeBytes; ++i) to[i] = code(2 * i) | code(2 * i + 1) << 4;
}

// All experts' matrices of a layer that files have as one tensor.
struct PackedMatrices {
  int64_t num_experts = 0;
  Shape one;  // of one projection of one expert, [outputs, inputs]
  std::vector<std::string_view> projections;
};

class Mxfp4Writer {
 public:
  Mxfp4Writer(Backend& backend, const CheckpointSource& source, const LoadedModel& names)
      : backend_(backend), source_(source), layout_(source.layout()) {
    if (names.config.family != "gpt_oss") {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("--type mxfp4: {}: in safetensors transformers reads it of gpt-oss' "
                              "experts alone; add --to gguf",
                              source.path()));
    }
    layout_.packs_experts = true;
    std::vector<CheckpointLayout::Entry> entries;
    for (CheckpointLayout::Entry& entry : layout_.entries) {
      const std::string whole = packed_tensor_of(entry.tensor.name);
      if (whole.empty() || entry.tensor.shape.rank() != 2) {
        entries.push_back(std::move(entry));
        continue;
      }
      const auto [found, is_new] = matrices_.try_emplace(whole);
      if (is_new) {
        found->second = first_of(whole, entry.tensor);
        entries.push_back({{.name = whole, .shape = {}}, entry.shard});
      }
    }
    layout_.entries.clear();
    for (CheckpointLayout::Entry& entry : entries) add_entry(std::move(entry));
  }

  std::optional<std::vector<TensorError>> try_write(const std::string& dir) {
    CheckpointWriter writer(dir, layout_);
    for (const TensorDecl& tensor : writer.tensors()) {
      if (StopSignals::asked()) return std::nullopt;
      const std::string_view name = tensor.name;
      if (const PackedMatrices* packed = find_packed(name, kBlocks)) {
        write_blocks(name, *packed, writer);
      } else if (find_packed(name, kScales) != nullptr) {
        writer.append(name, scales_);
      } else {
        copy_tensor(tensor, writer);
      }
    }
    writer.commit();
    return std::move(errors_);
  }

 private:
  [[nodiscard]] PackedMatrices first_of(const std::string& whole, const TensorDecl& part) const {
    if (part.shape[1] % kBlock != 0) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("--type mxfp4: {}: '{}' has rows of {}, which are no whole blocks "
                              "of {}",
                              source_.path(), part.name, part.shape[1], kBlock));
    }
    PackedMatrices out = {.one = part.shape, .projections = {"down_proj"}};
    if (whole.ends_with(".gate_up_proj")) out.projections = {"gate_proj", "up_proj"};
    while (source_.find(part_name(whole, out.num_experts, out.projections[0])) != nullptr) {
      ++out.num_experts;
    }
    return out;
  }

  static std::string part_name(std::string_view whole, int64_t expert,
                               std::string_view projection) {
    return fmt::format("{}.{}.{}.weight", experts_of_packed_tensor(whole), expert, projection);
  }

  void add_entry(CheckpointLayout::Entry entry) {
    const auto found = matrices_.find(entry.tensor.name);
    if (found == matrices_.end()) {
      layout_.entries.push_back(std::move(entry));
      return;
    }
    const PackedMatrices& packed = found->second;
    const int64_t rows = packed.one[0] * std::ssize(packed.projections);
    const Shape scales = {packed.num_experts, rows, packed.one[1] / kBlock};
    Shape blocks = scales;
    blocks.push_back(kCodeBytes);
    const std::string& name = entry.tensor.name;
    layout_.entries.push_back(
        {{.name = name + std::string(kBlocks), .shape = blocks, .integer_bytes = 1}, entry.shard});
    layout_.entries.push_back(
        {{.name = name + std::string(kScales), .shape = scales, .integer_bytes = 1}, entry.shard});
  }

  [[nodiscard]] const PackedMatrices* find_packed(std::string_view name,
                                                  std::string_view suffix) const {
    if (!name.ends_with(suffix)) return nullptr;
    const auto found = matrices_.find(std::string(name.substr(0, name.size() - suffix.size())));
    return found == matrices_.end() ? nullptr : &found->second;
  }

  // Writes the codes, and keeps the scales, which are the next tensor.
  void write_blocks(std::string_view name, const PackedMatrices& packed, CheckpointWriter& writer) {
    const std::string_view whole = name.substr(0, name.size() - kBlocks.size());
    TensorError& error = errors_.emplace_back();
    error.name = whole;
    error.to = encoding_.type->name;
    scales_.clear();
    std::vector<std::byte> blocks;
    for (int64_t expert = 0; expert < packed.num_experts; ++expert) {
      read_rows_of_expert(whole, packed, expert, error);
      encode_values(backend_, encoding_, values_, blocks, error);
      append_codes(name, blocks, writer);
    }
  }

  // values_ = the expert's rows, those of its projections in turn.
  void read_rows_of_expert(std::string_view whole, const PackedMatrices& packed, int64_t expert,
                           TensorError& error) {
    const auto count = static_cast<size_t>(std::ssize(packed.projections));
    const auto rows = static_cast<size_t>(packed.one[0]);
    const auto columns = static_cast<size_t>(packed.one[1]);
    values_.resize(count * rows * columns);
    std::vector<float> matrix(rows * columns);
    for (size_t i = 0; i < count; ++i) {
      const CheckpointTensor& from = *source_.find(part_name(whole, expert, packed.projections[i]));
      error.from = from.info.dtype_name;
      source_.read_f32(from, 0, std::ssize(matrix), matrix.data());
      for (size_t row = 0; row < rows; ++row) {
        std::memcpy(values_.data() + (row * count + i) * columns, matrix.data() + row * columns,
                    columns * sizeof(float));
      }
    }
  }

  void append_codes(std::string_view name, std::span<const std::byte> blocks,
                    CheckpointWriter& writer) {
    const auto bytes = static_cast<size_t>(encoding_.type->block_bytes);
    std::vector<std::byte> codes(blocks.size() / bytes * kCodeBytes);
    for (size_t block = 0; block < blocks.size() / bytes; ++block) {
      scales_.push_back(blocks[block * bytes]);
      copy_codes(&blocks[block * bytes + 1], &codes[block * kCodeBytes]);
    }
    writer.append(name, codes);
  }

  void copy_tensor(const TensorDecl& tensor, CheckpointWriter& writer) {
    const CheckpointTensor& from = *source_.find(tensor.name);
    const int64_t count = from.info.shape.num_elements();
    for (int64_t first = 0; first < count; first += kSliceElements) {
      values_.resize(static_cast<size_t>(std::min(kSliceElements, count - first)));
      source_.read_f32(from, first, std::ssize(values_), values_.data());
      writer.append_f32(tensor.name, values_);
    }
  }

  Backend& backend_;
  const CheckpointSource& source_;
  const GgufEncoding& encoding_ = *find_gguf_encoding("mxfp4");
  CheckpointLayout layout_;
  std::unordered_map<std::string, PackedMatrices> matrices_;  // by their tensor in bf16 files
  std::vector<float> values_;
  std::vector<std::byte> scales_;
  std::vector<TensorError> errors_;
};

}  // namespace

std::string mxfp4_config() {
  return R"({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", )"
         R"("model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]})";
}

std::optional<std::vector<TensorError>> write_mxfp4(Backend& backend,
                                                    const CheckpointSource& source,
                                                    const LoadedModel& names,
                                                    const std::string& dir) {
  return Mxfp4Writer(backend, source, names).try_write(dir);
}

}  // namespace strata::model
