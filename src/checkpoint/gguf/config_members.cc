// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf/config_members.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/error.h"
#include "text/json_reader.h"

namespace strata {

ConfigMembers::ConfigMembers(const GgufModel& model)
    : model_(model), row_(gguf_architecture(model)), num_layers_(gguf_num_layers(model)) {}

std::string ConfigMembers::use_key(std::string_view name) {
  std::string whole = gguf_key(model_, name);
  used_.insert(whole);
  return whole;
}

int64_t ConfigMembers::read_integer(std::string_view name, std::optional<int64_t> fallback) {
  constexpr int64_t kLargest = int64_t{1} << 40;
  const int64_t value = model_.keys().integer(use_key(name), fallback);
  if (value >= -kLargest && value <= kLargest) return value;
  model_.keys().fail(use_key(name), fmt::format("got {}, which is no size", value));
}

std::vector<int64_t> ConfigMembers::read_layer_integers(std::string_view name) {
  const std::string key = use_key(name);
  const std::span<const int64_t> values = model_.keys().integers(key);
  if (values.size() == 1) {
    return std::vector<int64_t>(static_cast<size_t>(num_layers_), read_integer(name));
  }
  if (std::ssize(values) < num_layers_) {
    model_.keys().fail(key, fmt::format("{} values of {} layers", values.size(), num_layers_));
  }
  return {values.begin(), values.begin() + num_layers_};
}

void ConfigMembers::refuse(std::string_view name, const std::string& what) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: key '{}': {}", model_.keys().where(), use_key(name), what));
}

bool ConfigMembers::layer_has(int64_t layer, std::string_view name) const {
  return has_tensor(fmt::format("blk.{}.{}", layer, name));
}

int64_t ConfigMembers::heads() {
  const int64_t heads = read_integer("attention.head_count");
  if (heads < 1) model_.keys().fail(use_key("attention.head_count"), "want at least 1");
  return heads;
}

int64_t ConfigMembers::head_dim() {
  return read_integer("attention.key_length", read_integer("embedding_length") / heads());
}

std::vector<bool> ConfigMembers::sliding_layers(int64_t default_pattern) {
  const std::string name = use_key("attention.sliding_window_pattern");
  const GgufKeys& keys = model_.keys();
  std::vector<bool> sliding;
  const auto found = keys.all().find(name);
  if (found != keys.all().end() && found->second.is_array) {
    sliding = keys.booleans(name);
    if (std::ssize(sliding) < num_layers_) keys.fail(name, "has fewer items than there are layers");
  } else {
    const int64_t pattern = keys.integer(name, default_pattern);
    if (pattern < 1) keys.fail(name, fmt::format("got {}, want at least 1", pattern));
    for (int64_t i = 0; i < num_layers_; ++i) sliding.push_back(i % pattern < pattern - 1);
  }
  return sliding;
}

std::string ConfigMembers::layer_types(int64_t default_pattern) {
  const std::vector<bool> sliding = sliding_layers(default_pattern);
  std::vector<std::string> types;
  for (int64_t i = 0; i < num_layers_; ++i) {
    types.emplace_back(sliding[static_cast<size_t>(i)] ? "\"sliding_attention\""
                                                       : "\"full_attention\"");
  }
  return fmt::format("[{}]", fmt::join(types, ", "));
}

void ConfigMembers::check_whole_head_rotates(std::string_view name, int64_t dim) {
  const int64_t rotated = read_integer(name, dim);
  if (rotated != dim) {
    refuse(name, fmt::format("got {} of heads of {}, only whole ones are supported", rotated, dim));
  }
}

std::vector<float> ConfigMembers::read_rope_divisors(int64_t dim) {
  constexpr std::string_view kName = "rope_freqs.weight";
  const GgufTensor* tensor = model_.find(kName);
  if (tensor == nullptr || tensor->type->name != "F32" || tensor->columns() != dim / 2 ||
      tensor->rows() != 1) {
    refuse("rope.dimension_count", fmt::format("{} is no F32 [{}]", kName, dim / 2));
  }
  std::vector<float> values(static_cast<size_t>(dim / 2));
  for (const GgufModel::Tensor& one : model_.tensors()) {
    if (one.info != tensor) continue;
    model_.files()[one.file].read_bytes(*tensor, 0, std::as_writable_bytes(std::span(values)));
  }
  return values;
}

void ConfigMembers::set_integer(std::string_view name, int64_t value) {
  set(name, fmt::format("{}", value));
}

std::string ConfigMembers::number_text(double value) const {
  if (std::isfinite(value)) return text::json_number(value);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: a setting of {} is no finite number", model_.keys().where(),
                          model_.architecture()));
}

void ConfigMembers::add_unused_keys() {
  const std::string prefix = model_.architecture() + ".";
  for (const auto& [name, value] : model_.keys().all()) {
    if (!name.starts_with(prefix) || used_.contains(name)) continue;
    set(name, fmt::format("\"{} value(s)\"", value.size()));
  }
}

std::string ConfigMembers::json() const {
  std::string out = "{";
  for (const auto& [name, value] : members_) text::append_json_member(out, "  ", name, value);
  return out + "\n}\n";
}

}  // namespace strata
