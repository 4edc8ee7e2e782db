// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4's attention from its paper's equations 9 to 23 as HF modeling_deepseek_v4.py has
// them: DeepseekV4Attention, DeepseekV4HCACompressor, DeepseekV4CSACompressor, DeepseekV4Indexer.
#include "model/blocks/compressed/compressed_attention.h"

#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

using Config = model::CompressedAttentionConfig;

void turn(const Config& c, Row& head, double position) {
  const auto dim = static_cast<size_t>(c.rope_dim);
  rotate(head, head.size() - dim, dim, position, kTheta, Pairs::kNeighbours);
}

// Entry w, of the tokens of window w, and with overlap of those of the window before: channel by
// channel a mean weighted by softmax(gate + bias). Normed and turned as the window's first token.
Rows compressed(const Config& c, const ReferenceInput& in, const std::string& prefix,
                size_t channels) {
  const auto ratio = static_cast<size_t>(c.ratio);
  const Row& bias = in.params.at(prefix + "position_bias");
  Rows kv, gate;
  for (const Row& x : in.x) {
    kv.push_back(linear(in.params, prefix + "kv_proj", x));
    gate.push_back(linear(in.params, prefix + "gate_proj", x));
  }
  const size_t width = kv.front().size();
  Rows entries;
  for (size_t first = 0; first + ratio <= in.x.size(); first += ratio) {
    Row entry(channels);
    for (size_t i = 0; i < channels; ++i) {
      Row values, gates;
      const auto add = [&](size_t token, size_t column) {
        values.push_back(kv[token][column]);
        gates.push_back(gate[token][column] + bias[token % ratio * width + column]);
      };
      if (c.overlap && first > 0) {
        for (size_t j = 0; j < ratio; ++j) add(first - ratio + j, i);
      }
      for (size_t j = 0; j < ratio; ++j) add(first + j, c.overlap ? channels + i : i);
      entry[i] = dot(softmax(gates), values);
    }
    entry = rms_norm(entry, in.params.at(prefix + "kv_norm.weight"), c.eps);
    turn(c, entry, static_cast<double>(first));
    entries.push_back(entry);
  }
  return entries;
}

// The entries that token t sees: the indexer's best.
std::vector<size_t> seen_entries(const Config& c, const ReferenceInput& in, const Row& latent,
                                 const Rows& keys, size_t t) {
  const std::string prefix = "self_attn.compressor.indexer.";
  const size_t count = (t + 1) / static_cast<size_t>(c.ratio);
  const auto width = static_cast<size_t>(c.index_dim);
  const Row q = linear(in.params, prefix + "q_b_proj", latent);
  const Row weights = linear(in.params, prefix + "scorer.weights_proj", in.x[t]);
  Row scores(count, 0.0);
  for (size_t h = 0; h < weights.size(); ++h) {
    Row query = part(q, h * width, width);
    turn(c, query, static_cast<double>(t));
    for (size_t i = 0; i < count; ++i) {
      scores[i] += weights[h] * std::max(0.0, dot(query, keys[i]));
    }
  }
  return top_places(scores, static_cast<size_t>(c.top_k));
}

// One head's context: over the window's keys, the entries and the sink, which has no value.
Row attend(const Config& c, const Row& query, const Rows& seen, double sink) {
  Row scores = {sink};
  for (const Row& key : seen) {
    scores.push_back(dot(query, key) / std::sqrt(static_cast<double>(c.head_dim)));
  }
  const Row weights = softmax(scores);
  Row out(query.size(), 0.0);
  for (size_t i = 0; i < seen.size(); ++i) add_scaled(out, weights[i + 1], seen[i]);
  return out;
}

// Each group of heads through its own rows of o_a_proj, then all through o_b_proj.
Row output(const Config& c, const Params& params, const Row& context) {
  const auto groups = static_cast<size_t>(c.num_groups);
  const auto rank = static_cast<size_t>(c.o_lora_rank);
  const size_t width = context.size() / groups;
  const Row& weight = params.at("self_attn.o_a_proj.weight");
  Row grouped;
  for (size_t g = 0; g < groups; ++g) {
    const Row y =
        linear(part(weight, g * rank * width, rank * width), part(context, g * width, width));
    grouped.insert(grouped.end(), y.begin(), y.end());
  }
  return linear(params, "self_attn.o_b_proj", grouped);
}

Rows run(const Config& c, const ReferenceInput& in) {
  const auto width = static_cast<size_t>(c.head_dim);
  const auto window = static_cast<size_t>(c.window);
  Rows entries, index_keys, keys, out;
  if (c.ratio > 0) entries = compressed(c, in, "self_attn.compressor.", width);
  if (c.index_heads > 0) {
    index_keys =
        compressed(c, in, "self_attn.compressor.indexer.", static_cast<size_t>(c.index_dim));
  }
  for (size_t t = 0; t < in.x.size(); ++t) {
    const auto position = static_cast<double>(t);
    keys.push_back(rms_norm(linear(in.params, "self_attn.kv_proj", in.x[t]),
                            in.params.at("self_attn.kv_norm.weight"), c.eps));
    turn(c, keys.back(), position);
    const Row latent = rms_norm(linear(in.params, "self_attn.q_a_proj", in.x[t]),
                                in.params.at("self_attn.q_a_norm.weight"), c.eps);
    const Row q = linear(in.params, "self_attn.q_b_proj", latent);
    const size_t first = t + 1 > window ? t + 1 - window : 0;
    Rows seen(keys.begin() + static_cast<std::ptrdiff_t>(first), keys.end());
    if (c.index_heads > 0) {
      for (const size_t i : seen_entries(c, in, latent, index_keys, t)) seen.push_back(entries[i]);
    } else if (c.ratio > 0) {
      const auto count = static_cast<std::ptrdiff_t>((t + 1) / static_cast<size_t>(c.ratio));
      seen.insert(seen.end(), entries.begin(), entries.begin() + count);
    }
    Row context;
    for (size_t h = 0; h < static_cast<size_t>(c.num_heads); ++h) {
      Row query = rms_norm(part(q, h * width, width), {}, c.eps);
      turn(c, query, position);
      Row head = attend(c, query, seen, in.params.at("self_attn.sinks")[h]);
      turn(c, head, -position);
      context.insert(context.end(), head.begin(), head.end());
    }
    out.push_back(output(c, in.params, context));
  }
  return out;
}

SublayerCase make(const std::string& name, const Config& config) {
  return {.name = name,
          .block = model::Block(model::kCompressedAttention, config),
          .reference = [config](const ReferenceInput& in) { return run(config, in); },
          .rope_dims = {config.rope_dim}};
}

constexpr Config kPlain = {.num_heads = 4,
                           .head_dim = 6,
                           .rope_dim = 4,
                           .q_lora_rank = 5,
                           .num_groups = 2,
                           .o_lora_rank = 3,
                           .window = 3};
Config with_entries(int64_t ratio, bool overlap, int64_t index_heads) {
  Config c = kPlain;
  c.ratio = ratio;
  c.overlap = overlap;
  c.index_heads = index_heads;
  if (index_heads > 0) {
    c.index_dim = 4;
    c.top_k = 2;
  }
  return c;
}

INSTANTIATE_TEST_SUITE_P(compressed_attention, SublayerAlone,
                         ::testing::Values(make("window_alone", kPlain),
                                           make("heavily_compressed", with_entries(4, false, 0)),
                                           make("compressed_sparse", with_entries(2, true, 3))),
                         case_name);

}  // namespace
}  // namespace strata::testing
