// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/stacks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <set>

#include "base/error.h"
#include "text/json_reader.h"

namespace strata {
namespace {

constexpr std::string_view kLayers = "layers.";
constexpr std::string_view kStack = "stack";
constexpr std::string_view kExperts = ".experts.";
constexpr int64_t kMostLayers = 10000;
constexpr int64_t kMostExperts = 65536;
constexpr int64_t kMostParts = 1 << 17;  // of one tensor: a name takes memory, also of no bytes

// Where "layers." begins as a whole component of a name, or npos.
size_t find_layers_component(std::string_view name) {
  for (size_t at = name.find(kLayers); at != std::string_view::npos;
       at = name.find(kLayers, at + 1)) {
    if (at == 0 || name[at - 1] == '.') return at;
  }
  return std::string_view::npos;
}

struct StackedName {
  std::string_view before, after;  // of "stackK": "model.layers." and ".mlp.up_proj.weight"
  size_t stack = 0;
};
std::optional<StackedName> parse_stacked_name(std::string_view name) {
  const size_t at = find_layers_component(name);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = name.substr(at + kLayers.size());
  if (!rest.starts_with(kStack)) return std::nullopt;
  const std::string_view digits = rest.substr(kStack.size());
  StackedName out;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), out.stack);
  if (error != std::errc() || end == digits.data() + digits.size() || *end != '.') {
    return std::nullopt;
  }
  out.before = name.substr(0, at + kLayers.size());
  out.after = digits.substr(static_cast<size_t>(end - digits.data()));
  return out;
}

// The name of a layer's tensor in a stack, or with `expert` (not -1) of one expert's.
std::string name_of_part(const StackedName& stacked, int64_t layer, int64_t expert) {
  std::string after(stacked.after);
  if (expert >= 0) {
    after.replace(after.find(kExperts), kExperts.size(), fmt::format("{}{}.", kExperts, expert));
  }
  return fmt::format("{}{}{}", stacked.before, layer, after);
}

[[noreturn]] void fail(const std::string& where, const TensorInfo& info, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: tensor '{}' {}: {}", where, info.name, info.shape_text(), what));
}

// The `index`-th of `count` equal parts, without the first `axes` axes.
TensorInfo slice_of(const TensorInfo& info, std::string name, int64_t index, int64_t count,
                    int axes) {
  TensorInfo part = info;
  const int64_t bytes = info.num_bytes() / count;
  part.name = std::move(name);
  part.begin = info.begin + index * bytes;
  part.end = part.begin + bytes;
  part.dims.erase(part.dims.begin(), part.dims.begin() + axes);
  part.shape = Shape();
  if (info.readable) {
    for (const int64_t dim : part.dims) part.shape.push_back(dim);
  }
  return part;
}

// Experts of each layer of a stack, 1 where it has none; Error where the stack does not divide.
int64_t count_stack_experts(const TensorInfo& info, int64_t num_layers, bool of_experts,
                            const std::string& where) {
  if (std::ssize(info.dims) < (of_experts ? 2 : 1) || info.dims[0] != num_layers) {
    fail(where, info, fmt::format("{} lists {} layers", kStacksKey, num_layers));
  }
  const int64_t experts = of_experts ? info.dims[1] : 1;
  if (experts < 1 || experts > kMostExperts) {
    fail(where, info, fmt::format("want 1 to {} experts", kMostExperts));
  }
  const int64_t count = num_layers * experts;
  if (count > kMostParts) fail(where, info, fmt::format("more than {} parts", kMostParts));
  if (info.num_bytes() % count != 0) {
    fail(where, info, fmt::format("{} bytes are no {} parts", info.num_bytes(), count));
  }
  return experts;
}

// `seen`: those of the stacks so far, to which these are added.
std::vector<int64_t> parse_unseen_layers(text::JsonReader& json, std::set<int64_t>& seen) {
  std::vector<int64_t> layers;
  json.begin_array();
  while (json.next_item()) {
    const int64_t layer = json.read_integer();
    if (layer < 0 || layer >= kMostLayers || !seen.insert(layer).second) {
      json.fail(fmt::format("layer {}: want 0 to {}, each once", layer, kMostLayers - 1));
    }
    layers.push_back(layer);
  }
  return layers;
}

}  // namespace

std::string stacks_text(const LayerStacks& stacks) {
  std::vector<std::string> lists;
  for (const auto& layers : stacks) lists.push_back(fmt::format("[{}]", fmt::join(layers, ",")));
  return fmt::format("[{}]", fmt::join(lists, ","));
}

LayerStacks parse_stacks(std::string_view text, const std::string& where) {
  text::JsonReader json(text, fmt::format("{}: __metadata__: {}", where, kStacksKey));
  LayerStacks stacks;
  std::set<int64_t> seen;
  json.begin_array();
  while (json.next_item()) {
    stacks.push_back(parse_unseen_layers(json, seen));
    if (stacks.back().empty() || std::ssize(stacks) > kMostLayers) {
      json.fail("a stack without layers");
    }
  }
  json.end();
  return stacks;
}

std::optional<std::string> stacked_name(std::string_view name, int64_t layer, int64_t stack,
                                        int64_t expert) {
  const size_t at = find_layers_component(name);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string number = fmt::format("{}.", layer);
  const std::string_view rest = name.substr(at + kLayers.size());
  if (!rest.starts_with(number)) return std::nullopt;
  std::string after(rest.substr(number.size() - 1));
  if (expert >= 0) {
    const std::string of_expert = fmt::format("{}{}.", kExperts, expert);
    const size_t begin = after.find(of_expert);
    if (begin == std::string::npos) return std::nullopt;
    after.replace(begin, of_expert.size(), kExperts);
  }
  return fmt::format("{}{}{}{}", name.substr(0, at + kLayers.size()), kStack, stack, after);
}

bool is_stack_of_experts(std::string_view stacked) {
  const std::optional<StackedName> name = parse_stacked_name(stacked);
  const size_t at = name ? name->after.find(kExperts) : std::string_view::npos;
  if (at == std::string_view::npos) return false;
  // "up_proj.weight"; transformers' own stacks ("gate_up_proj") have no ending
  return name->after.find('.', at + kExperts.size()) != std::string_view::npos;
}

std::optional<std::vector<TensorInfo>> unstack_tensor(const TensorInfo& info,
                                                      const LayerStacks& stacks,
                                                      const std::string& where) {
  const std::optional<StackedName> name = parse_stacked_name(info.name);
  if (!name) return std::nullopt;
  if (name->stack >= stacks.size()) {
    fail(where, info, fmt::format("{} lists {} stack(s)", kStacksKey, stacks.size()));
  }
  const std::vector<int64_t>& layers = stacks[name->stack];
  const bool of_experts = is_stack_of_experts(info.name);
  const int64_t experts = count_stack_experts(info, std::ssize(layers), of_experts, where);
  const int64_t count = std::ssize(layers) * experts;
  std::vector<TensorInfo> parts;
  for (size_t i = 0; i < layers.size(); ++i) {
    for (int64_t e = 0; e < experts; ++e) {
      parts.push_back(slice_of(info, name_of_part(*name, layers[i], of_experts ? e : -1),
                               static_cast<int64_t>(i) * experts + e, count, of_experts ? 2 : 1));
    }
  }
  return parts;
}

}  // namespace strata
