// SPDX-License-Identifier: Apache-2.0
// Source of the form: bitsandbytes functional.py (QuantState.as_dict).
#include "model/export/write_nf4.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "base/error.h"
#include "base/stop.h"
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/nf4.h"
#include "model/weights/load_in_4bit.h"
#include "tensor/rounded.h"

namespace strata::model {
namespace {

static_assert(kSliceElements % kNf4Block == 0);

constexpr std::string_view kAbsmax = ".absmax";
constexpr std::string_view kQuantMap = ".quant_map";
constexpr std::string_view kState = ".quant_state.bitsandbytes__nf4";

std::string_view torch_name(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bfloat16";
}

std::string quant_state_json(const TensorDecl& weight) {
  return fmt::format(
      R"({{"quant_type": "nf4", "blocksize": {}, "dtype": "{}", "shape": [{}, {}]}})", kNf4Block,
      torch_name(weight.dtype), weight.shape[0], weight.shape[1]);
}

void check_bitsandbytes_supports(const CheckpointSource& source, const LoadedModel& names) {
  if (names.config.module_prefix != "model.") {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--type nf4: {}: a model of several modalities; bitsandbytes would "
                            "take those in full types for narrow ones",
                            source.path()));
  }
  for (const Parameter& parameter : names.weights->table()) {
    if (parameter.row == nullptr || parameter.expert < 0) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--type nf4: {}: experts are no linear layers in transformers, and "
                            "bitsandbytes has no form for them",
                            source.path()));
  }
}

// Names of the projections of layers.
std::unordered_set<std::string_view> projection_names(const std::vector<Parameter>& table) {
  std::unordered_set<std::string_view> names;
  for (const Parameter& parameter : table) {
    if (is_linear_of_layer(parameter)) names.insert(parameter.name);
  }
  return names;
}

// Codes of a block's values, two a byte, the first one high; and the values that they stand for.
void encode_block(std::span<const float> values, float scale, DType dtype, std::byte* codes,
                  float* after) {
  std::array<std::byte, kNf4Block> wide;
  quantise_to_nf4(values, scale, wide);
  for (size_t i = 0; i < values.size(); ++i) {
    codes[i / 2] |= i % 2 == 0 ? wide[i] << 4 : wide[i];
    after[i] = rounded_to(nf4_values()[static_cast<size_t>(wide[i])] * scale, dtype);
  }
}

class Nf4Writer {
 public:
  Nf4Writer(Backend& backend, const CheckpointSource& source, const LoadedModel& names)
      : backend_(backend), source_(source), layout_(source.layout()) {
    check_bitsandbytes_supports(source, names);
    const std::unordered_set<std::string_view> narrows = projection_names(names.weights->table());
    std::vector<CheckpointLayout::Entry> entries;
    for (CheckpointLayout::Entry& entry : layout_.entries) {
      weights_[entry.tensor.name] = entry.tensor;
      if (narrows.contains(entry.tensor.name)) {
        add_nf4_parts(entry, entries);
      } else {
        entries.push_back(std::move(entry));
      }
    }
    layout_.entries = std::move(entries);
  }

  std::optional<std::vector<TensorError>> try_write(const std::string& dir) {
    CheckpointWriter writer(dir, layout_);
    for (const TensorDecl& tensor : writer.tensors()) {
      if (StopSignals::asked()) return std::nullopt;
      const auto part = parts_.find(tensor.name);
      if (part != parts_.end()) {
        write_part(tensor, *source_.find(part->second), writer);
      } else if (codes_.contains(tensor.name)) {
        write_codes(tensor, writer);
      } else {
        copy_tensor(tensor, writer);
      }
    }
    writer.commit();
    return std::move(errors_);
  }

 private:
  void add_nf4_parts(const CheckpointLayout::Entry& entry,
                     std::vector<CheckpointLayout::Entry>& entries) {
    const TensorDecl& weight = entry.tensor;
    const int64_t count = weight.shape.num_elements();
    const auto add = [&](std::string_view suffix, const Shape& shape, int integer_bytes) {
      TensorDecl decl = {.name = weight.name + std::string(suffix),
                         .shape = shape,
                         .integer_bytes = integer_bytes};
      if (!suffix.empty()) parts_[decl.name] = weight.name;
      entries.push_back({std::move(decl), entry.shard});
    };
    codes_.insert(weight.name);
    add("", {(count + 1) / 2, 1}, 1);
    add(kAbsmax, {(count + kNf4Block - 1) / kNf4Block}, 0);
    add(kQuantMap, {std::ssize(nf4_values())}, 0);
    add(kState, {std::ssize(quant_state_json(weight))}, 1);
  }

  // Calls body() with the values of each slice of whole blocks in values_.
  template <typename Body>
  void read_each_slice(const CheckpointTensor& tensor, Body body) {
    const int64_t count = tensor.info.shape.num_elements();
    for (int64_t first = 0; first < count; first += kSliceElements) {
      values_.resize(static_cast<size_t>(std::min(kSliceElements, count - first)));
      source_.read_f32(tensor, first, std::ssize(values_), values_.data());
      // bitsandbytes quantises what the model holds: values of its type.
      const DType dtype = weights_.at(tensor.info.name).dtype;
      for (float& value : values_) value = rounded_to(value, dtype);
      body();
    }
  }

  [[nodiscard]] std::vector<float> largest_of_blocks() const {
    std::vector<float> out;
    for (size_t begin = 0; begin < values_.size(); begin += kNf4Block) {
      const size_t count = std::min<size_t>(kNf4Block, values_.size() - begin);
      out.push_back(nf4_scale(std::span(values_).subspan(begin, count)));
    }
    return out;
  }

  void write_part(const TensorDecl& part, const CheckpointTensor& weight,
                  CheckpointWriter& writer) {
    if (part.name.ends_with(kQuantMap)) return writer.append_f32(part.name, nf4_values());
    if (part.name.ends_with(kState)) {
      const std::string text = quant_state_json(weights_.at(weight.info.name));
      return writer.append(part.name, std::as_bytes(std::span(text)));
    }
    read_each_slice(weight, [&] { writer.append_f32(part.name, largest_of_blocks()); });
  }

  void write_codes(const TensorDecl& tensor, CheckpointWriter& writer) {
    const CheckpointTensor& weight = *source_.find(tensor.name);
    TensorError& error = errors_.emplace_back();
    error.name = tensor.name;
    error.from = weight.info.dtype_name;
    error.to = "nf4";
    const DType dtype = weights_.at(tensor.name).dtype;
    read_each_slice(weight, [&] { writer.append(tensor.name, encode_slice(dtype, error)); });
  }

  // The codes of values_, of which `error` gets what they differ by.
  std::vector<std::byte> encode_slice(DType dtype, TensorError& error) {
    const std::vector<float> largest = largest_of_blocks();
    std::vector<float> after(values_.size());
    std::vector<std::byte> codes((values_.size() + 1) / 2);
    backend_.run_on_host(std::ssize(largest), [&](int64_t block) {
      const auto begin = static_cast<size_t>(block * kNf4Block);
      const size_t count = std::min<size_t>(kNf4Block, values_.size() - begin);
      encode_block(std::span(values_).subspan(begin, count), largest[static_cast<size_t>(block)],
                   dtype, codes.data() + begin / 2, after.data() + begin);
    });
    add_rounding_error(values_, after, error);
    return codes;
  }

  void copy_tensor(const TensorDecl& tensor, CheckpointWriter& writer) {
    const CheckpointTensor& from = *source_.find(tensor.name);
    if (tensor.integer_bytes > 0) {
      std::vector<std::byte> bytes(static_cast<size_t>(from.info.num_bytes()));
      source_.read_bytes(from, 0, bytes);
      return writer.append(tensor.name, bytes);
    }
    read_each_slice(from, [&] { writer.append_f32(tensor.name, values_); });
  }

  Backend& backend_;
  const CheckpointSource& source_;
  CheckpointLayout layout_;
  std::unordered_map<std::string, TensorDecl> weights_;  // as they are in the source
  std::unordered_map<std::string, std::string> parts_;   // of a weight, by the part's name
  std::unordered_set<std::string> codes_;                // names of weights that are narrow
  std::vector<float> values_;
  std::vector<TensorError> errors_;
};

}  // namespace

std::string nf4_config() {
  return R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false, )"
         R"("bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": false, )"
         R"("bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8", )"
         R"("llm_int8_skip_modules": ["lm_head"]})";
}

std::optional<std::vector<TensorError>> write_nf4(Backend& backend, const CheckpointSource& source,
                                                  const LoadedModel& names,
                                                  const std::string& dir) {
  return Nf4Writer(backend, source, names).try_write(dir);
}

}  // namespace strata::model
