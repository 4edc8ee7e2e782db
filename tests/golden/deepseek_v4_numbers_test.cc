// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4 by numbers of its own inference code in float64, for a model whose weights are made
// of their names (tools/golden/golden_deepseek_v4_definition.py --numbers has the same): logits of
// the decoder and of multi-token prediction, both losses, and norms of gradients.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "checkpoint/safetensors_writer.h"
#include "tests/golden/probe_run.h"

namespace strata::golden {
namespace {

constexpr int64_t kTokens = 260;
constexpr const char* kConfig = R"({"architectures": ["DeepseekV4ForCausalLM"],
  "model_type": "deepseek_v4", "vocab_size": 64, "hidden_size": 32, "moe_intermediate_size": 24,
  "num_hidden_layers": 6, "num_hash_layers": 3, "num_attention_heads": 4, "head_dim": 32,
  "qk_rope_head_dim": 8, "q_lora_rank": 16, "o_groups": 2, "o_lora_rank": 12, "sliding_window": 8,
  "compress_ratios": [0, 0, 4, 128, 4, 128, 0], "rope_theta": 10000, "compress_rope_theta": 160000,
  "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 64,
                   "beta_fast": 32, "beta_slow": 1},
  "index_n_heads": 8, "index_head_dim": 16, "index_topk": 8, "n_routed_experts": 8,
  "num_experts_per_tok": 3, "routed_scaling_factor": 1.5, "swiglu_limit": 1.0, "hc_mult": 4,
  "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "num_nextn_predict_layers": 1,
  "max_position_embeddings": 512, "tie_word_embeddings": false, "torch_dtype": "float32"})";

using Shapes = std::vector<TensorDecl>;

void add(Shapes& shapes, const std::string& name, const Shape& shape) {
  shapes.push_back({name, DType::kF32, shape});
}

void add_compressor(Shapes& shapes, const std::string& at, int64_t ratio, int64_t rows,
                    int64_t size) {
  add(shapes, at + "wkv.weight", {rows, 32});
  add(shapes, at + "wgate.weight", {rows, 32});
  add(shapes, at + "ape", {ratio, rows});
  add(shapes, at + "norm.weight", {size});
}

void add_reader(Shapes& shapes, const std::string& at) {
  add(shapes, at + "norm.weight", {32});
  add(shapes, at + "hc_head_fn", {4, 128});
  add(shapes, at + "hc_head_base", {4});
  add(shapes, at + "hc_head_scale", {1});
}

void add_layer(Shapes& shapes, const std::string& at, int64_t ratio, bool has_bias) {
  for (const std::string site : {"attn", "ffn"}) {
    add(shapes, at + site + "_norm.weight", {32});
    add(shapes, at + "hc_" + site + "_fn", {24, 128});
    add(shapes, at + "hc_" + site + "_base", {24});
    add(shapes, at + "hc_" + site + "_scale", {3});
  }
  const std::string a = at + "attn.", f = at + "ffn.";
  add(shapes, a + "wq_a.weight", {16, 32});
  add(shapes, a + "q_norm.weight", {16});
  add(shapes, a + "wq_b.weight", {128, 16});
  add(shapes, a + "wkv.weight", {32, 32});
  add(shapes, a + "kv_norm.weight", {32});
  add(shapes, a + "attn_sink", {4});
  add(shapes, a + "wo_a.weight", {24, 64});
  add(shapes, a + "wo_b.weight", {32, 24});
  if (ratio > 0) add_compressor(shapes, a + "compressor.", ratio, ratio == 4 ? 64 : 32, 32);
  if (ratio == 4) {
    add_compressor(shapes, a + "indexer.compressor.", ratio, 32, 16);
    add(shapes, a + "indexer.wq_b.weight", {128, 16});
    add(shapes, a + "indexer.weights_proj.weight", {8, 32});
  }
  add(shapes, f + "gate.weight", {8, 32});
  if (has_bias) add(shapes, f + "gate.bias", {8});
  for (int e = 0; e <= 8; ++e) {
    const std::string expert = e < 8 ? fmt::format("experts.{}.", e) : "shared_experts.";
    add(shapes, f + expert + "w1.weight", {24, 32});
    add(shapes, f + expert + "w3.weight", {24, 32});
    add(shapes, f + expert + "w2.weight", {32, 24});
  }
}

Shapes all_shapes() {
  Shapes shapes;
  add(shapes, "embed.weight", {64, 32});
  add(shapes, "head.weight", {64, 32});
  add_reader(shapes, "");
  const int64_t ratios[] = {0, 0, 4, 128, 4, 128};
  for (int i = 0; i < 6; ++i) add_layer(shapes, fmt::format("layers.{}.", i), ratios[i], i >= 3);
  add_layer(shapes, "mtp.0.", 0, true);
  add_reader(shapes, "mtp.0.");
  add(shapes, "mtp.0.e_proj.weight", {32, 32});
  add(shapes, "mtp.0.h_proj.weight", {32, 32});
  add(shapes, "mtp.0.enorm.weight", {32});
  add(shapes, "mtp.0.hnorm.weight", {32});
  return shapes;
}

// Values are scale * u + offset, u from -1 to 1.
struct Fill {
  const char* end;
  double scale, offset;
};
constexpr Fill kFills[] = {{"norm.weight", 0.5, 1}, {"_fn", 0.5, 0},       {"_base", 0.9, 0},
                           {"_scale", 0.5, 1},      {"gate.bias", 0.3, 0}, {"ape", 1.7, 0},
                           {"attn_sink", 1.7, 0}};

std::vector<float> values_of(const TensorDecl& tensor) {
  uint32_t x = 2166136261u;
  for (const char byte : tensor.name + "#21") x = (x ^ static_cast<uint8_t>(byte)) * 16777619u;
  double scale = 2.6 / std::sqrt(static_cast<double>(tensor.shape[tensor.shape.rank() - 1]));
  double offset = 0;
  if (tensor.name == "embed.weight") scale = 1.7;
  for (const Fill& fill : kFills) {
    if (!tensor.name.ends_with(fill.end)) continue;
    scale = fill.scale;
    offset = fill.offset;
    break;
  }
  std::vector<float> values;
  for (int64_t i = 0; i < tensor.shape.num_elements(); ++i) {
    x = 1664525u * x + 1013904223u;
    values.push_back(
        static_cast<float>((static_cast<double>(x) / 4294967296.0 * 2 - 1) * scale + offset));
  }
  return values;
}

std::string write_model() {
  const std::string dir = temporary_path("numbers");
  std::filesystem::create_directories(dir);
  std::ofstream(dir + "/config.json") << kConfig;
  Shapes shapes = all_shapes();
  for (int i = 0; i < 3; ++i) {
    shapes.push_back({.name = fmt::format("layers.{}.ffn.gate.tid2eid", i),
                      .dtype = DType::kF32,
                      .shape = {64, 3},
                      .integer_bytes = 8});
  }
  SafetensorsWriter writer(dir + "/model.safetensors", shapes);
  for (const TensorDecl& tensor : writer.tensors()) {
    if (tensor.integer_bytes == 0) {
      writer.append_f32(tensor.name, values_of(tensor));
      continue;
    }
    const int64_t layer = tensor.name[std::string("layers.").size()] - '0';
    std::vector<int64_t> table;
    for (int64_t i = 0; i < 64 * 3; ++i) table.push_back((7 * (i / 3) + 3 * (i % 3) + layer) % 8);
    writer.append(tensor.name, std::as_bytes(std::span(table)));
  }
  writer.commit();
  return dir;
}

// Both losses as means: the weights are those of the decoder's 259 targets, and multi-token
// prediction has one target less.
std::string write_request() {
  std::string tokens, targets, weights;
  const auto id = [](int64_t t) { return (37 * t + 11 * (t / 7)) % 64; };
  for (int64_t t = 0; t < kTokens; ++t) {
    const char* comma = t == 0 ? "" : ",";
    tokens += fmt::format("{}{}", comma, id(t));
    targets += fmt::format("{}{}", comma, t + 1 < kTokens ? id(t + 1) : 0);
    weights += fmt::format("{}{}", comma, t + 1 < kTokens ? 1.0 / 259 : 0.0);
  }
  const std::string path = temporary_path("numbers.json");
  std::ofstream(path) << fmt::format(
      R"({{"sequences": [{{"tokens": [{}], "targets": [{}], "weights": [{}]}}], "mtp": {},
           "want": ["logits", "loss", "param_grads"]}})",
      tokens, targets, weights, 0.3 * 259 / 258);
  return path;
}

struct Number {
  const char* name;
  double norm, first;
};
constexpr Number kGradients[] = {
    {"embed.weight", 0.570924909, -0.006001052},
    {"head.weight", 0.651700258, -0.016408954},
    {"norm.weight", 0.431158697, 0.078317120},
    {"hc_head_fn", 0.028225696, -0.000095171},
    {"layers.0.attn.wq_a.weight", 0.820572285, 0.024980993},
    {"layers.2.attn.compressor.wgate.weight", 0.192382111, 0.007178013},
    {"layers.3.attn.wo_a.weight", 0.634927702, -0.007086893},
    {"layers.3.ffn.gate.weight", 0.032609417, -0.002332837},
    {"layers.3.ffn.shared_experts.w2.weight", 0.110107793, 0.008151002},
    {"mtp.0.e_proj.weight", 0.145307328, 0.007237773},
    {"mtp.0.h_proj.weight", 0.114558846, 0.002683603},
    {"mtp.0.enorm.weight", 0.031043693, 0.000234183},
    {"mtp.0.hc_head_base", 0.001427597, -0.000181855}};

TEST(Numbers, AreThoseOfTheModelsOwnCode) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  const std::string dir = write_model();
  const ProbeResult result = run_probe({.model = dir, .request = write_request()});
  ASSERT_EQ(result.exit_code, 0) << result.message;
  // float32 on weights rounded to float32, beside float64.
  const auto near = [&](const char* name, size_t row, size_t column, double want) {
    EXPECT_NEAR(result.tensors.at(name).values[row * 64 + column], want, 1e-4) << name << row;
  };
  near("logits", 0, 0, -2.480844260);
  near("logits", 131, 1, -1.607749197);
  near("logits", 259, 3, 1.158000806);
  near("mtp_logits", 0, 0, 2.737123949);
  near("mtp_logits", 0, 3, -0.231592800);
  near("mtp_logits", 131, 3, -1.378935288);
  near("mtp_logits", 258, 1, -2.424998509);
  near("mtp_logits", 259, 1, 0.0);  // nothing is behind the last token
  EXPECT_NEAR(result.tensors.at("loss_sum").values[0], 5.450650109, 1e-5);
  EXPECT_NEAR(result.tensors.at("mtp_loss_sum").values[0] * 259 / 258, 4.905749899, 1e-5);
  for (const Number& number : kGradients) {
    const std::vector<float>& values =
        result.tensors.at(std::string("param_grad.") + number.name).values;
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    EXPECT_NEAR(std::sqrt(squares), number.norm, 1e-4 * number.norm) << number.name;
    EXPECT_NEAR(values[0], number.first, 1e-4 * number.norm) << number.name;
  }
  double squares = 0;
  for (const auto& [name, tensor] : result.tensors) {
    if (!name.starts_with("param_grad.")) continue;
    for (const float value : tensor.values) squares += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(std::sqrt(squares), 4.011226223, 4e-4);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace strata::golden
