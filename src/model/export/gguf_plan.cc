// SPDX-License-Identifier: Apache-2.0
#include "model/export/gguf_plan.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/file_io.h"
#include "checkpoint/gguf/names.h"
#include "model/export/gguf_keys.h"
#include "model/export/gguf_mixture.h"
#include "model/weights/narrow_forms.h"
#include "model/weights/tensor_names.h"

namespace strata::model {
namespace {

constexpr const char* kNormName = "model.norm.weight";
constexpr std::string_view kOpenFiles = "/proc/self/fd/";

std::vector<int64_t> stored_dims(std::string_view stored, const Shape& shape, int64_t num_experts) {
  std::vector<int64_t> dims;
  if (num_experts > 0) dims.push_back(num_experts);
  // A convolution's [C, 1, W] and the gate [1, D] of shared experts have no axis of one.
  const bool is_gate = stored.find("ffn_gate_inp_shexp") != std::string_view::npos;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool is_inner = shape.rank() == 3 && axis == 1;
    if ((is_inner || (is_gate && axis == 0)) && shape[axis] == 1) continue;
    dims.push_back(shape[axis]);
  }
  return dims;
}

// What a checkpoint in the canonical form calls a parameter, whatever names it has here.
std::string canonical_name(const LoadedModel& names, size_t index) {
  const ModelWeights& weights = *names.weights;
  const Parameter& p = weights.table()[index];
  if (p.row != nullptr) {
    std::string name = form_name(names.config, p);
    const auto names_in_files = names.config.names_in_files;
    return names_in_files == nullptr ? name : names_in_files(name).front();
  }
  if (index == weights.embedding_index()) return kEmbeddingName;
  return index == weights.head_index() ? kHeadName : kNormName;
}

// A header and data of its tensors, of which those behind the first ones are zeroes.
void write_with_zeroes(int fd, const std::string& name, const GgufHeader& header,
                       std::span<const float> first_data) {
  const std::string bytes = header.serialise();
  write_all(fd, std::as_bytes(std::span(bytes)), name);
  write_all(fd, std::as_bytes(first_data), name);
  const auto size = static_cast<off_t>(std::ssize(bytes) + header.data_bytes());
  if (::ftruncate(fd, size) != 0) fail_io(name, "grow");
}

}  // namespace

WeightOrigins::WeightOrigins(const CheckpointSource& source, const LoadedModel& names,
                             bool unties) {
  const NameForm& form = find_name_form(source, names.config);
  const std::vector<Parameter>& table = names.weights->table();
  for (size_t i = 0; i < table.size(); ++i) {
    const Parameter& p = table[i];
    const std::string name = canonical_name(names, i);
    add(name, {p.name, p.first_row, p.shape}, p.row == nullptr ? 0 : p.row->num_experts);
    const std::string own = name_in_form(form, name);
    if (p.row == nullptr && source.find(own) != nullptr) origins_[name].tensor = own;
  }
  if (!unties) return;
  add(kHeadName, origins_.at(kEmbeddingName), 0);
  origins_[kHeadName].tensor = name_in_form(form, kHeadName);
}

void WeightOrigins::add(const std::string& name, WeightOrigin origin, int64_t num_experts) {
  origins_[name] = std::move(origin);
  const bool is_first = name.find(".experts.0.") != std::string::npos;
  if (num_experts == 0 || is_first) items_.push_back({name, num_experts});
}

void add_model_tensors(const ModelConfig& config, const WeightOrigins& origins,
                       const std::string& type, const std::string& where, GgufHeader& header) {
  const GgufArchitecture& architecture = require_gguf_architecture(config);
  std::vector<std::string> names;
  for (const WeightOrigins::Item& item : origins.items()) {
    names.push_back(gguf_stored_name(architecture, item.name, config.num_layers()));
    if (!names.back().empty()) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--to gguf: {}: tensor '{}' has no name in llama.cpp's {}", where,
                            item.name, architecture.name));
  }
  const GgufMixture mixture(type, config, names);
  std::unordered_map<std::string_view, int64_t> num_parts;  // of tensors that are not yet added
  for (const std::string& name : names) ++num_parts[name];
  for (size_t i = 0; i < names.size(); ++i) {
    const int64_t parts = std::exchange(num_parts[names[i]], 0);
    if (parts == 0) continue;
    const WeightOrigins::Item& item = origins.items()[i];
    std::vector<int64_t> dims =
        stored_dims(names[i], origins.at(item.name).shape, item.num_experts);
    // Gate and up of experts may be one tensor, of whose rows an expert has those of both.
    CHECK(parts == 1 || item.num_experts > 0, names[i], parts);
    if (item.num_experts > 0 && dims.size() > 1) dims[1] *= parts;
    header.add_tensor(names[i], *mixture.encoding_for(names[i], dims).type, dims);
  }
}

ParsedHeader::ParsedHeader(const GgufHeader& header, std::span<const float> first_data) {
  const std::string name = "--to gguf: header";
  // Opened again by its path.
  const OpenFile file(::memfd_create("gguf", MFD_CLOEXEC));
  if (file.fd < 0) fail_io(name, "create");
  write_with_zeroes(file.fd, name, header, first_data);
  model_ = std::make_unique<GgufModel>(fmt::format("{}{}", kOpenFiles, file.fd));
  weights_ = gguf_weights(*model_);
}

std::string ParsedHeader::without_path(const std::string& fault) {
  const size_t end = fault.find(": ");
  return fault.starts_with(kOpenFiles) && end != std::string::npos ? fault.substr(end + 2) : fault;
}

void permute_items(const std::vector<int32_t>& order, int64_t run, int64_t outer,
                   std::vector<float>& values) {
  if (order.empty()) return;
  const std::vector<float> before = values;
  const auto items = std::ssize(order);
  CHECK(outer * items * run == std::ssize(values), items, run, outer, values.size());
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < items; ++i) {
      const int64_t to = order[static_cast<size_t>(i)];
      std::copy_n(before.data() + (o * items + i) * run, run,
                  values.data() + (o * items + to) * run);
    }
  }
}

}  // namespace strata::model
