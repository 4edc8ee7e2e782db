// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/gqa_rows.h"

namespace strata::model {
namespace {

using Key = GqaRows::Key;
using enum GqaRows::Key;

// Where there are more ranks than keys' heads, a rank has a copy of the one that its queries
// read.
RowShards shards_of_kv(const GqaConfig& c) {
  RowShards shards = outputs_by(c.num_kv_heads, "key/value heads");
  shards.copied = true;
  return shards;
}

// In files q, k and v are rows of one matrix, and adapters have one module for it.
void fuse_qkv(const GqaConfig& c, int64_t d, ParamRows& rows) {
  const int64_t width = c.q_proj_width() + 2 * c.kv_width();
  int64_t first_row = 0;
  for (ParamRow& row : rows) {
    if (row.key > kV) continue;
    row.others.push_back({"self_attn.qkv_proj.weight", {width, d}, first_row});
    row.lora.is_part = true;
    first_row += row.shape[0];
  }
  rows.push_back({.key = kQkv,
                  .lora = {.path = "self_attn.qkv_proj",
                           .order = kQ,
                           .in = d,
                           .out = width,
                           .parts = {kQ, kK, kV}}});
}

void add_norms(const GqaConfig& c, ParamRows& rows) {
  const auto add = [&](Key key, std::string_view suffix, int64_t num_heads) {
    const int64_t width = c.norms_span_heads ? num_heads * c.head_dim : c.head_dim;
    const float init = 1.0f - c.norm_offset;
    rows.push_back({.key = key, .suffix = suffix, .shape = {width}, .init = init});
  };
  add(kQNorm, "self_attn.q_norm.weight", c.num_heads);
  if (c.has_k_proj()) add(kKNorm, "self_attn.k_norm.weight", c.num_kv_heads);
}

void add_biases(const GqaConfig& c, int64_t d, ParamRows& rows) {
  const auto add = [&](Key key, std::string_view suffix, int64_t width) {
    rows.push_back({.key = key, .suffix = suffix, .shape = {width}});
  };
  if (c.qkv_bias) {
    add(kQBias, "self_attn.q_proj.bias", c.q_proj_width());
    if (c.has_k_proj()) add(kKBias, "self_attn.k_proj.bias", c.kv_width());
    if (c.has_v_proj()) add(kVBias, "self_attn.v_proj.bias", c.kv_width());
  }
  if (c.o_bias) add(kOBias, "self_attn.o_proj.bias", d);
}

}  // namespace

void GqaRows::add(const GqaConfig& c, int64_t d, ParamRows& rows) {
  const auto add = [&](Key key, std::string_view suffix, std::string_view path, Shape shape,
                       const RowShards& shards, int bias) {
    rows.push_back({.key = key,
                    .suffix = suffix,
                    .shape = shape,
                    .shards = shards,
                    .bias = bias,
                    .lora = {.path = path, .order = key}});
  };
  const auto bias_key = [](bool has, Key key) { return has ? static_cast<int>(key) : kNoKey; };
  const RowShards heads = outputs_by(c.num_heads, "heads");
  const RowShards kv_heads = shards_of_kv(c);
  add(kQ, "self_attn.q_proj.weight", "self_attn.q_proj", {c.q_proj_width(), d}, heads,
      bias_key(c.qkv_bias, kQBias));
  if (c.has_k_proj()) {
    add(kK, "self_attn.k_proj.weight", "self_attn.k_proj", {c.kv_width(), d}, kv_heads,
        bias_key(c.qkv_bias, kKBias));
  }
  if (c.has_v_proj()) {
    add(kV, "self_attn.v_proj.weight", "self_attn.v_proj", {c.kv_width(), d}, kv_heads,
        bias_key(c.qkv_bias, kVBias));
  }
  add(kO, "self_attn.o_proj.weight", "self_attn.o_proj", {d, c.q_width()}, gathered(heads),
      bias_key(c.o_bias, kOBias));
  add_biases(c, d, rows);
  if (c.qk_norm) add_norms(c, rows);
  if (c.sinks) {
    rows.push_back({.key = kSinks,
                    .suffix = "self_attn.sinks",
                    .shape = {c.num_heads},
                    .draw = ParamDraw::kNormal});
  }
  if (c.fused_qkv) fuse_qkv(c, d, rows);
}

}  // namespace strata::model
