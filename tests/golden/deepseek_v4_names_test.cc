// SPDX-License-Identifier: Apache-2.0
// The three families of names that DeepSeek-V4's checkpoints have: a model that transformers saved,
// rewritten here by the table of its own conversion (transformers' conversion_mapping.py) into the
// names that it has in memory, experts as two tensors a layer, and into the published ones, loads
// as the same parameters, bit by bit, and computes the same; so does one stored in few bits, as it
// is published. Tables of experts are checked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>

#include "checkpoint/checkpoint_dir.h"
#include "tests/checkpoint/safetensors_bytes.h"
#include "tests/golden/probe_run.h"

namespace strata::golden {
namespace {

const std::string kSaved = STRATA_SOURCE_DIR "/tests/golden/deepseek_v4/model";
// In the published names, with the layer of multi-token prediction, which transformers leaves out.
const std::string kMtp = STRATA_SOURCE_DIR "/tests/golden/deepseek_v4_mtp/model";

using Table = std::vector<std::pair<const char*, const char*>>;

// From saved to in memory.
const Table kInMemory = {
    {R"(\.attn\.)", ".self_attn."},
    {R"(\.ffn\.)", ".mlp."},
    {R"(\.indexer\.compressor\.)", ".compressor.indexer."},
    {R"(^head\.)", "lm_head."},
    {R"(\.attn_norm\.)", ".input_layernorm."},
    {R"(\.ffn_norm\.)", ".post_attention_layernorm."},
    {R"(\.hc_(attn|ffn)_(fn|base|scale)$)", ".$1_hc.$2"},
    {R"(\.attn_sink)", ".sinks"},
    {R"(\.indexer\.weights_proj\.)", ".compressor.indexer.scorer.weights_proj."},
    {R"(\.self_attn\.indexer\.wq_b\.)", ".self_attn.compressor.indexer.q_b_proj."},
    {R"((self_attn.*)\.norm\.)", "$1.kv_norm."},
    {R"(\.ape$)", ".position_bias"},
    {R"(\.wq_a\.)", ".q_a_proj."},
    {R"(\.wq_b\.)", ".q_b_proj."},
    {R"(\.wkv\.)", ".kv_proj."},
    {R"(\.wgate\.)", ".gate_proj."},
    {R"(\.wo_a\.)", ".o_a_proj."},
    {R"(\.wo_b\.)", ".o_b_proj."},
    {R"(\.q_norm\.)", ".q_a_norm."},
    {R"(\.gate\.bias$)", ".gate.e_score_correction_bias"},
    {R"(\.w1\.)", ".gate_proj."},
    {R"(\.w2\.)", ".down_proj."},
    {R"(\.w3\.)", ".up_proj."}};
// From saved to published.
const Table kPublished = {{R"(^model\.embed_tokens\.)", "embed."},
                          {R"(^model\.hc_head\.hc_)", "hc_head_"},
                          {R"(^model\.)", ""},
                          {R"(\.attn\.norm\.)", ".attn.kv_norm."}};

// What transformers' names would be of a published file, and those in memory of these.
const Table kSavedOfPublished = {{R"(^embed\.)", "model.embed_tokens."},
                                 {R"(^hc_head_)", "model.hc_head.hc_"},
                                 {R"(^(norm|layers|mtp)\.)", "model.$1."},
                                 {R"(\.attn\.kv_norm\.)", ".attn.norm."}};
const Table kMtpInMemory = {{R"(\.hc_head_)", ".hc_head.hc_"}};

std::string renamed(std::string name, const Table& table) {
  for (const auto& [from, to] : table) name = std::regex_replace(name, std::regex(from), to);
  return name;
}

struct Stored {
  TensorDecl decl;
  std::vector<std::byte> bytes;
};
using Model = std::map<std::string, Stored>;

Model read_model(const std::string& dir = kSaved) {
  Model model;
  const CheckpointDir checkpoint(dir);
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    Stored& stored = model[tensor.info.name];
    stored.decl.name = tensor.info.name;
    stored.decl.integer_bytes = tensor.info.integer_bytes();
    for (const int64_t dim : tensor.info.dims) stored.decl.shape.push_back(dim);
    stored.bytes.resize(static_cast<size_t>(tensor.info.num_bytes()));
    checkpoint.read_bytes(tensor, 0, stored.bytes);
  }
  return model;
}

std::string write_model(const std::string& name, const Model& model,
                        const std::string& source = kSaved) {
  const std::string dir = temporary_path(name);
  std::filesystem::create_directories(dir);
  std::filesystem::copy_file(source + "/config.json", dir + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::vector<TensorDecl> decls;
  for (const auto& [key, stored] : model) decls.push_back(stored.decl);
  SafetensorsWriter writer(dir + "/model.safetensors", decls);
  for (const TensorDecl& decl : writer.tensors())
    writer.append(decl.name, model.at(decl.name).bytes);
  writer.commit();
  return dir;
}

Model with_names(const Model& model, const Table& table) {
  Model out;
  for (const auto& [key, stored] : model) {
    const std::string name = renamed(key, table);
    out[name] = stored;
    out[name].decl.name = name;
  }
  return out;
}

// Experts one by one to gate_up_proj and down_proj of a layer.
Model with_stacked_experts(const Model& model) {
  static const std::regex expert(R"((.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight)");
  Model out;
  std::map<std::string, std::map<int, std::map<std::string, const Stored*>>> layers;
  for (const auto& [name, stored] : model) {
    std::smatch match;
    if (std::regex_match(name, match, expert)) {
      layers[match[1]][std::stoi(match[2])][match[3]] = &stored;
    } else {
      out[name] = stored;
    }
  }
  for (const auto& [layer, experts] : layers) {
    for (const auto& [name, parts] : std::map<std::string, std::vector<std::string>>{
             {"gate_up_proj", {"gate", "up"}}, {"down_proj", {"down"}}}) {
      Stored& whole = out[layer + "." + name];
      int64_t rows = 0, cols = 0;
      for (const auto& [index, tensors] : experts) {
        rows = 0;
        for (const std::string& part : parts) {
          const Stored& from = *tensors.at(part);
          whole.bytes.insert(whole.bytes.end(), from.bytes.begin(), from.bytes.end());
          rows += from.decl.shape[0];
          cols = from.decl.shape[1];
        }
      }
      whole.decl = {.name = layer + "." + name,
                    .shape = {static_cast<int64_t>(experts.size()), rows, cols}};
    }
  }
  return out;
}

std::string request(const char* text) {
  const std::string path = temporary_path("names.json");
  std::ofstream(path) << text;
  return path;
}

// A step that moves nothing hands the parameters back as they were loaded.
constexpr const char* kParameters =
    R"({"sequences": [{"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9], "targets": [2, 3, 4, 5, 6, 7, 8, 9, 1]}],
        "want": ["logits"], "train": {"what": "params", "steps": 1, "lr": 0}})";

constexpr const char* kMtpParameters =
    R"({"sequences": [{"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9], "targets": [2, 3, 4, 5, 6, 7, 8, 9, 1]}],
        "mtp": 0.3, "want": ["logits", "loss"], "train": {"what": "params", "steps": 1, "lr": 0}})";

Tensors run(const std::string& dir, const char* what = kParameters) {
  const ProbeResult result = run_probe({.model = dir, .request = request(what)});
  EXPECT_EQ(result.exit_code, 0) << result.message;
  return result.tensors;
}

class Names : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  }
};

// The numbers of `source`, a model's directory, under the names of other families, compute what it
// computes and come back as they are.
void expect_same(const std::string& source, const std::map<std::string, Model>& models,
                 const char* what) {
  const Tensors want = run(source, what);
  for (const auto& [name, model] : models) {
    SCOPED_TRACE(name);
    const std::string dir = write_model(name, model, source);
    const Tensors got = run(dir, what);
    for (const char* const key : {"logits", "mtp_logits", "mtp_loss"}) {
      ASSERT_EQ(got.contains(key), want.contains(key)) << key;
      if (!want.contains(key)) continue;
      EXPECT_EQ(got.at(key).values, want.at(key).values) << key;
    }
    size_t num_compared = 0;
    for (const auto& [key, tensor] : got) {
      if (!key.starts_with("param_final.")) continue;
      const std::string stored = key.substr(std::string("param_final.").size());
      const Stored& from = model.at(stored);
      ASSERT_EQ(from.bytes.size(), tensor.values.size() * sizeof(float)) << stored;
      EXPECT_EQ(std::memcmp(from.bytes.data(), tensor.values.data(), from.bytes.size()), 0)
          << stored;
      ++num_compared;
    }
    // All but tables and the routers' biases.
    size_t num_buffers = 0;
    for (const auto& [key, stored] : model) {
      num_buffers += key.ends_with("tid2eid") || key.ends_with("gate.bias") ||
                     key.ends_with("e_score_correction_bias");
    }
    EXPECT_EQ(num_compared, model.size() - num_buffers);
    std::filesystem::remove_all(dir);
  }
}

TEST_F(Names, ThreeFamiliesHoldTheSameParameters) {
  const Model saved = read_model();
  expect_same(kSaved,
              {{"published", with_names(saved, kPublished)},
               {"in_memory", with_names(saved, kInMemory)},
               {"stacked", with_stacked_experts(with_names(saved, kInMemory))}},
              kParameters);
}

TEST_F(Names, MultiTokenPredictionHasTheSameThree) {
  const Model saved = with_names(read_model(kMtp), kSavedOfPublished);
  const Model in_memory = with_names(with_names(saved, kInMemory), kMtpInMemory);
  expect_same(kMtp,
              {{"saved", saved},
               {"in_memory", in_memory},
               {"stacked", with_stacked_experts(in_memory)},
               {"beside", with_names(in_memory, {{R"(^model\.mtp\.)", "mtp."}})}},
              kMtpParameters);
}

// A layer that is there in part is not there: what is missing is named. Without a weight nobody
// looks.
TEST_F(Names, APartOfTheLayerIsNotEnough) {
  Model model = read_model(kMtp);
  model.erase("mtp.0.enorm.weight");
  const std::string dir = write_model("partial", model, kMtp);
  const auto probe = [&](const char* what) {
    return run_probe({.model = dir, .request = request(what)});
  };
  const ProbeResult with = probe(kMtpParameters);
  EXPECT_EQ(with.exit_code, 2);
  EXPECT_NE(with.message.find("1 fault(s)"), std::string::npos) << with.message;
  EXPECT_NE(with.message.find("model.mtp.0.enorm.weight"), std::string::npos) << with.message;
  EXPECT_EQ(probe(kParameters).exit_code, 0);
  std::filesystem::remove_all(dir);
}

// A matrix in few bits: bytes, scales of powers of two, and the values that they stand for.
struct Quantized {
  std::string bytes, scales;
  std::vector<float> values;
};

// Each element becomes the nearest of `levels` times its block's scale, which varies.
Quantized quantize(const Stored& stored, const std::vector<float>& levels, int64_t block_rows,
                   int64_t block_cols) {
  const int64_t rows = stored.decl.shape[0], cols = stored.decl.shape[1];
  const auto blocks = [](int64_t size, int64_t block) { return (size + block - 1) / block; };
  const int64_t scale_cols = blocks(cols, block_cols);
  Quantized out;
  for (int64_t i = 0; i < blocks(rows, block_rows) * scale_cols; ++i)
    out.scales += static_cast<char>(127 - 6 + i % 3);
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < rows * cols; ++i) {
    float value = 0.0f;
    std::memcpy(&value, stored.bytes.data() + i * 4, 4);
    const int64_t block = i / cols / block_rows * scale_cols + i % cols / block_cols;
    const float scale = std::ldexp(1.0f, static_cast<int>(block % 3) - 6);
    const auto distance = [&](float level) { return std::abs(level * scale - value); };
    const auto nearest = std::min_element(
        levels.begin(), levels.end(), [&](float a, float b) { return distance(a) < distance(b); });
    codes.push_back(static_cast<uint8_t>(nearest - levels.begin()));
    out.values.push_back(*nearest * scale);
  }
  const size_t of_byte = levels.size() == 16 ? 2 : 1;
  for (size_t i = 0; i < codes.size(); i += of_byte) {
    const int high = of_byte == 2 ? codes[i + 1] << 4 : 0;
    out.bytes += static_cast<char>(codes[i] | high);
  }
  return out;
}

std::vector<float> e4m3_levels() {
  std::vector<float> levels;
  for (int bits = 0; bits < 127; ++bits)
    levels.push_back(e4m3_to_float(static_cast<uint8_t>(bits)));
  levels.push_back(1e30f);  // 0x7f is no number
  for (int bits = 128; bits < 255; ++bits)
    levels.push_back(e4m3_to_float(static_cast<uint8_t>(bits)));
  return levels;
}
std::vector<float> e2m1_levels() {
  std::vector<float> levels;
  for (int bits = 0; bits < 16; ++bits) levels.push_back(e2m1_to_float(static_cast<uint8_t>(bits)));
  return levels;
}

// A file of tensors whose types our writer does not have.
class RawFile {
 public:
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& dims,
           const std::string& bytes) {
    std::string shape;
    for (const int64_t dim : dims) shape += (shape.empty() ? "" : ",") + std::to_string(dim);
    const auto begin = static_cast<int64_t>(data_.size());
    data_ += bytes;
    header_ +=
        (header_.empty() ? "" : ",") + strata::testing::entry(name, dtype, "[" + shape + "]", begin,
                                                              static_cast<int64_t>(data_.size()));
  }
  void retype(const std::string& from, const std::string& to) {
    header_ = std::regex_replace(header_, std::regex('"' + from + '"'), '"' + to + '"');
  }
  void write(const std::string& path) const {
    std::ofstream(path, std::ios::binary)
        << strata::testing::safetensors_bytes("{" + header_ + "}", data_);
  }

 private:
  std::string header_, data_;
};

// Projections in eight bits, routed experts in four.
TEST_F(Names, FewBitsAreTheValuesThatTheyStandFor) {
  static const std::regex eight(
      R"(.*(\.attn\.w[a-z_]+|\.indexer\.wq_b|shared_experts\.w\d)\.weight)");
  static const std::regex four(R"(.*\.experts\.\d+\.w\d\.weight)");
  Model plain = read_model();
  RawFile file;
  int num_eight = 0, num_four = 0;
  for (auto& [name, stored] : plain) {
    const std::string published = renamed(name, kPublished);
    std::vector<int64_t> dims;
    for (int axis = 0; axis < stored.decl.shape.rank(); ++axis)
      dims.push_back(stored.decl.shape[axis]);
    const bool is_eight = std::regex_match(name, eight);
    if (!is_eight && !std::regex_match(name, four)) {
      file.add(published, stored.decl.integer_bytes == 8 ? "I64" : "F32", dims,
               {reinterpret_cast<const char*>(stored.bytes.data()), stored.bytes.size()});
      continue;
    }
    const Quantized few = is_eight ? quantize(stored, e4m3_levels(), 128, 128)
                                   : quantize(stored, e2m1_levels(), 1, 32);
    std::memcpy(stored.bytes.data(), few.values.data(), stored.bytes.size());
    std::vector<int64_t> scales = {(dims[0] + 127) / 128, (dims[1] + 127) / 128};
    if (!is_eight) {
      scales = {dims[0], (dims[1] + 31) / 32};
      dims[1] /= 2;
    }
    file.add(published, is_eight ? "F8_E4M3" : "I8", dims, few.bytes);
    file.add(std::regex_replace(published, std::regex("weight$"), "scale"), "F8_E8M0", scales,
             few.scales);
    ++(is_eight ? num_eight : num_four);
  }
  EXPECT_GE(num_eight, 20);
  EXPECT_GE(num_four, 20);
  const std::string plain_dir = write_model("plain", plain);
  const std::string dir = write_model("few_bits", plain);
  file.write(dir + "/model.safetensors");
  const Tensors want = run(plain_dir), got = run(dir);
  ASSERT_EQ(got.size(), want.size());
  EXPECT_TRUE(got.at("logits").values == want.at("logits").values);
  for (const auto& [key, tensor] : want) {
    if (!key.starts_with("param_final.")) continue;
    const std::string prefix = "param_final.";
    const auto found = got.find(prefix + renamed(key.substr(prefix.size()), kPublished));
    ASSERT_NE(found, got.end()) << key;
    EXPECT_TRUE(found->second.values == tensor.values) << key;
  }
  // Two values in a byte that are said to be one have half the columns: refused, not half read.
  file.retype("I8", "F8_E4M3");
  file.write(dir + "/model.safetensors");
  const ProbeResult halves = run_probe({.model = dir, .request = request(kParameters)});
  EXPECT_EQ(halves.exit_code, 2);
  EXPECT_THAT(halves.message, ::testing::HasSubstr("layers.0.ffn.experts.0.w1.weight"));
  EXPECT_THAT(halves.message, ::testing::HasSubstr("shape"));
  std::filesystem::remove_all(dir);
  std::filesystem::remove_all(plain_dir);
}

// Without its bias a router would choose others, and say nothing.
TEST_F(Names, ARoutersBiasUnderAnotherNameIsRefused) {
  const std::string dir =
      write_model("bias", with_names(read_model(), {{R"(\.gate\.bias$)", ".gate.score_bias"}}));
  const ProbeResult result = run_probe({.model = dir, .request = request(kParameters)});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.message, ::testing::HasSubstr("layers.1.ffn.gate.score_bias"));
  std::filesystem::remove_all(dir);
}

// Experts that do not exist, or twice for one token, are named; so is a table of the wrong type.
TEST_F(Names, TablesAreChecked) {
  const auto fault = [&](const std::function<void(Stored&)>& damage) {
    Model model = read_model();
    damage(model.at("model.layers.0.ffn.gate.tid2eid"));
    const std::string dir = write_model("table", model);
    const ProbeResult result = run_probe({.model = dir, .request = request(kParameters)});
    EXPECT_EQ(result.exit_code, 2);
    std::filesystem::remove_all(dir);
    return result.message;
  };
  const auto set = [](Stored& stored, size_t index, int64_t value) {
    std::memcpy(stored.bytes.data() + index * sizeof(value), &value, sizeof(value));
  };
  EXPECT_THAT(fault([&](Stored& s) { set(s, 3, 5); }),
              ::testing::HasSubstr("tid2eid': element 3 is 5, want 0 to 4"));
  EXPECT_THAT(fault([&](Stored& s) { set(s, 0, -1); }), ::testing::HasSubstr("element 0 is -1"));
  EXPECT_THAT(fault([&](Stored& s) {
                set(s, 0, 1);
                set(s, 1, 1);
              }),
              ::testing::HasSubstr("element 1 is 1 again"));
  EXPECT_THAT(fault([&](Stored& s) {
                s.decl.integer_bytes = 0;
                s.bytes.resize(s.bytes.size() / 2);
              }),
              ::testing::HasSubstr("dtype F32, want I64 or I32"));
}

}  // namespace
}  // namespace strata::golden
