// SPDX-License-Identifier: Apache-2.0
// Source: llama.cpp's conversion/gemma.py and src/models/gemma3.cpp.
#include "checkpoint/gguf/gemma_config.h"

#include <fmt/format.h>

namespace strata {
namespace {

constexpr int64_t kPattern = 6;  // of layers that slide, where the file does not say

void add_linear_rope_scaling(ConfigMembers& members) {
  const double factor = members.read_number("rope.scaling.factor", 1.0);
  const std::string type =
      members.model().keys().text(members.use_key("rope.scaling.type"), "linear");
  if (type == "linear" && factor != 1.0) {
    members.set("rope_scaling", fmt::format(R"({{"rope_type": "linear", "factor": {}}})",
                                            members.number_text(factor)));
  } else if (type != "linear" && type != "none") {
    members.refuse("rope.scaling.type",
                   fmt::format("got '{}', supported are linear and none", type));
  }
}

}  // namespace

void add_gemma3_members(ConfigMembers& members) {
  const int64_t hidden = members.read_integer("embedding_length");
  constexpr int64_t kLayersOf27B = 62;
  members.set_integer("query_pre_attn_scalar", members.num_layers() == kLayersOf27B
                                                   ? hidden / members.heads()
                                                   : members.head_dim());
  members.set_integer("sliding_window", members.read_integer("attention.sliding_window"));
  members.set("layer_types", members.layer_types(kPattern));
  members.set_number("rope_theta", members.read_number("rope.freq_base", 1e6));
  members.set_number("rope_local_base_freq", members.read_number("rope.freq_base_swa", 1e4));
  add_linear_rope_scaling(members);
  members.check_whole_head_rotates("rope.dimension_count", members.head_dim());
}

}  // namespace strata
