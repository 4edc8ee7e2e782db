// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4's attention: queries of many heads over one key a token, which is its value too,
// within a window; and where the layer has a compressor, over entries that each stand for `ratio`
// earlier tokens, all of those (heavily compressed) or those that an indexer lists (compressed
// sparse). The softmax has a sink a head; contexts are turned back by their query's position,
// since values carry a rotation; heads go through the output projection group by group. Between
// passes a sequence keeps a ring of its last keys and the compressors' open windows, and in its
// pages the entries and the keys that the indexer compares. Source: HF modeling_deepseek_v4.py,
// DeepseekV4Attention, DeepseekV4HCACompressor, DeepseekV4CSACompressor, DeepseekV4Indexer.
#pragma once
#include "model/blocks/block.h"

namespace strata::model {

struct CompressedAttentionConfig {
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t rope_dim = 0;  // of the head's end
  int64_t q_lora_rank = 0;
  int64_t num_groups = 0;   // of heads, in the output projection
  int64_t o_lora_rank = 0;  // outputs of a group
  int64_t window = 0;       // keys that a query sees, its own among them
  int64_t ratio = 0;        // tokens of an entry; 0: no compressor
  bool overlap = false;     // an entry has terms of the window before its own
  int64_t index_heads = 0;  // of the indexer; 0: every entry is seen
  int64_t index_dim = 0;
  int64_t top_k = 0;  // entries that a query sees
  double eps = 1e-6;  // of the norms
  int rope = 0;       // in ModelConfig::ropes
  [[nodiscard]] int64_t width() const { return num_heads * head_dim; }
  friend bool operator==(const CompressedAttentionConfig&,
                         const CompressedAttentionConfig&) = default;
};

extern const BlockOps kCompressedAttention;

// Keys of its parameters; matrices first.
enum CompressedAttentionKey : uint8_t {
  kCompressedQA,
  kCompressedQB,
  kCompressedKv,
  kCompressedOA,
  kCompressedOB,
  kCompressorKv,
  kCompressorGate,
  kIndexerQ,
  kIndexerWeights,
  kIndexerKv,
  kIndexerGate,
  kCompressedNumLinears,
  kCompressedQANorm = kCompressedNumLinears,
  kCompressedKvNorm,
  kCompressedSinks,
  kCompressorBias,
  kCompressorNorm,
  kIndexerBias,
  kIndexerNorm
};

}  // namespace strata::model
