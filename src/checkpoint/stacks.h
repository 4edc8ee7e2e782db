// SPDX-License-Identifier: Apache-2.0
// Checkpoints with layers of one config in one tensor:
// "model.layers.stack0.self_attn.q_proj.weight" [n, ...] has that of each of n layers, and experts
// that had a tensor each are one behind them, "model.layers.stack0.mlp.experts.up_proj.weight" [n,
// E, ...]. Which layers a stack has, in their order, the file's metadata says: "strata.stacks":
// "[[0,1,3],[2]]".
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace strata {

constexpr const char* kStacksKey = "strata.stacks";

using LayerStacks = std::vector<std::vector<int64_t>>;
std::string stacks_text(const LayerStacks& stacks);
// Error for what is no list of lists of layers, each layer once.
LayerStacks parse_stacks(std::string_view text, const std::string& where);

// The name of a layer's tensor in its stack; with `expert` (not -1) without the expert's number.
// Nothing where the name does not have the number of the layer, or of the expert.
std::optional<std::string> stacked_name(std::string_view name, int64_t layer, int64_t stack,
                                        int64_t expert);
// Whether a stacked name has experts behind the layers.
bool is_stack_of_experts(std::string_view stacked);

// The tensors of single layers (and experts) that a stacked one holds, each with its own name,
// shape and place in the file; nothing where the name is not of a stack. Error where it does not
// fit.
std::optional<std::vector<TensorInfo>> unstack_tensor(const TensorInfo& info,
                                                      const LayerStacks& stacks,
                                                      const std::string& where);

}  // namespace strata
