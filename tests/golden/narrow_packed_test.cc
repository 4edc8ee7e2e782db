// SPDX-License-Identifier: Apache-2.0
// Models in safetensors of FP8, FP4, NVFP4 and bitsandbytes' 4 bits whose weights stay so against
// the same files dequantised to bf16: every byte that `strata probe` writes. Forms differ by
// parameter.
#include "tensor/narrow.h"
#include "tests/golden/narrow_models.h"

namespace strata::golden {
namespace {

enum class Packed {
  kFp8Blocks,
  kNf4,
  kFp8Rows,
  kFp4,
  kNvfp4,
  kE2m1,
  kFp8,
  kModelOpt,
  kNf4Nested,
  kPlain
};
constexpr size_t kNumPacked = 10;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint8_t byte() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint8_t>(state_ >> 56);
  }
  std::string bytes(int64_t count) {
    std::string out(static_cast<size_t>(count), '\0');
    for (char& c : out) c = static_cast<char>(byte());
    return out;
  }
  // Around `size`, of any 24 bits.
  std::string floats(int64_t count, double size) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(size * (0.5 + byte() / 256.0 + byte() / 65536.0 / 3));
      out.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    return out;
  }

 private:
  uint64_t state_;
};

// A safetensors file that grows.
class PackedFile {
 public:
  void add(const std::string& name, const char* dtype, const array& shape,
           const std::string& bytes) {
    header_[name] = {{"dtype", dtype},
                     {"shape", shape},
                     {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_ += bytes;
  }
  void write(const std::string& path) const {
    const std::string text = boost::json::serialize(header_);
    const uint64_t length = text.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));
    file << text << data_;
  }

 private:
  object header_;
  std::string data_;
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void add_fp8(PackedFile& file, const std::string& name, int64_t rows, int64_t cols,
             const array& scales, int64_t count, Random& random) {
  std::string codes = random.bytes(rows * cols);
  for (char& c : codes) c = static_cast<char>((c & 0x7f) == 0x7f ? 0x10 : c);
  file.add(name, "F8_E4M3", {rows, cols}, codes);
  file.add(name + (count > 1 ? "_scale_inv" : "_scale"), "F32", scales,
           random.floats(count, 0.0008));
}

void add_bnb4(PackedFile& file, const std::string& name, int64_t rows, int64_t cols, bool nf4,
              bool nested, Random& random) {
  const int64_t blocks = ceil_div(rows * cols, 64);
  const char* const type = nf4 ? "nf4" : "fp4";
  const float* const map = narrow_layout(nf4 ? NarrowForm::kNf4 : NarrowForm::kFp4).values;
  object state = {
      {"quant_type", type}, {"blocksize", 64}, {"dtype", "bfloat16"}, {"shape", {rows, cols}}};
  file.add(name, "U8", {ceil_div(rows * cols, 2), 1}, random.bytes(ceil_div(rows * cols, 2)));
  file.add(name + ".quant_map", "F32", {16}, std::string(reinterpret_cast<const char*>(map), 64));
  if (nested) {
    state["nested_blocksize"] = 256;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = 0.0371;
    file.add(name + ".absmax", "U8", {blocks}, random.bytes(blocks));
    file.add(name + ".nested_absmax", "F32", {ceil_div(blocks, 256)},
             random.floats(ceil_div(blocks, 256), 0.01));
    file.add(name + ".nested_quant_map", "F32", {256}, random.floats(256, 0.7));
  } else {
    file.add(name + ".absmax", "F32", {blocks}, random.floats(blocks, 0.08));
  }
  const std::string text = boost::json::serialize(state);
  file.add(name + ".quant_state.bitsandbytes__" + type, "U8", {text.size()}, text);
}

// In compressed-tensors' form, or in ModelOpt's.
void add_nvfp4(PackedFile& file, const std::string& name, int64_t rows, int64_t cols, bool packed,
               Random& random) {
  std::string scales = random.bytes(rows * cols / 16);
  for (char& c : scales) c = static_cast<char>(0x30 + (c & 15));
  file.add(packed ? name + "_packed" : name, "U8", {rows, cols / 2}, random.bytes(rows * cols / 2));
  file.add(name + "_scale", "F8_E4M3", {rows, cols / 16}, scales);
  file.add(name + (packed ? "_global_scale" : "_scale_2"), "F32", {1},
           random.floats(1, packed ? 60.0 : 1.0 / 60));
}

void add_packed(PackedFile& file, Packed kind, const std::string& name, int64_t rows, int64_t cols,
                Random& random) {
  switch (kind) {
    case Packed::kFp8Blocks: {
      const int64_t r = ceil_div(rows, 128), c = ceil_div(cols, 128);
      return add_fp8(file, name, rows, cols, {r, c}, r * c, random);
    }
    case Packed::kFp8Rows:
      return add_fp8(file, name, rows, cols, {rows, 1}, rows, random);
    case Packed::kE2m1: {
      std::string exponents = random.bytes(rows * cols / 32);
      for (char& c : exponents) c = static_cast<char>(120 + (c & 1));
      file.add(name, "I8", {rows, cols / 2}, random.bytes(rows * cols / 2));
      return file.add(name.substr(0, name.size() - 6) + "scale", "F8_E8M0", {rows, cols / 32},
                      exponents);
    }
    case Packed::kNf4:
    case Packed::kFp4:
    case Packed::kNf4Nested:
      return add_bnb4(file, name, rows, cols, kind != Packed::kFp4, kind == Packed::kNf4Nested,
                      random);
    case Packed::kNvfp4:
    case Packed::kModelOpt:
      return add_nvfp4(file, name, rows, cols, kind == Packed::kNvfp4, random);
    case Packed::kFp8:
    case Packed::kPlain:
      return add_fp8(file, name, rows, cols, {}, 1, random);
  }
}

// The experts of gpt-oss: [experts, inputs, outputs] becomes blocks of each output's inputs.
void add_mxfp4(PackedFile& file, const TensorInfo& tensor, Random& random) {
  const int64_t experts = tensor.dims[0], groups = tensor.dims[1] / 32, outputs = tensor.dims[2];
  std::string exponents = random.bytes(experts * outputs * groups);
  for (char& c : exponents) c = static_cast<char>(120 + (c & 1));
  file.add(tensor.name + "_blocks", "U8", {experts, outputs, groups, 16},
           random.bytes(experts * outputs * groups * 16));
  file.add(tensor.name + "_scales", "U8", {experts, outputs, groups}, exponents);
}

class PackedModels : public NarrowModelTest {
 protected:
  // The model with projections, experts, embedding and head in forms in turn.
  void make(size_t first) {
    const SafetensorsFile plain(folder_.file("model/model.safetensors"));
    PackedFile file;
    Random random(first + 5);
    size_t turn = first;
    for (const TensorInfo& tensor : plain.tensors()) {
      const bool matrix = tensor.shape.rank() == 2 && tensor.name.ends_with(".weight") &&
                          tensor.shape[1] % 32 == 0 &&
                          tensor.name.find("norm") == std::string::npos &&
                          tensor.name.find("mlp.gate.weight") == std::string::npos &&
                          tensor.name.find("mlp.router.weight") == std::string::npos;
      if (tensor.name.ends_with(".experts.gate_up_proj") ||
          tensor.name.ends_with(".experts.down_proj")) {
        add_mxfp4(file, tensor, random);
        continue;
      }
      const auto kind = static_cast<Packed>(matrix ? turn++ % kNumPacked : kNumPacked - 1);
      if (kind != Packed::kPlain) {
        add_packed(file, kind, tensor.name, tensor.shape[0], tensor.shape[1], random);
        continue;
      }
      std::string bytes(static_cast<size_t>(tensor.num_bytes()), '\0');
      plain.read_bytes(tensor, 0, std::as_writable_bytes(std::span(bytes)));
      array shape;
      for (const int64_t dim : tensor.dims) shape.emplace_back(dim);
      file.add(tensor.name, tensor.dtype_name.c_str(), shape, bytes);
    }
    std::filesystem::create_directories(folder_.file("packed"));
    file.write(folder_.file("packed/model.safetensors"));
    std::filesystem::copy_file(folder_.file("model/config.json"),
                               folder_.file("packed/config.json"),
                               std::filesystem::copy_options::overwrite_existing);
  }
};

TEST_P(PackedModels, EqualTheirBf16Copies) {
  size_t first = 0;
  const std::pair<const char*, const char*> runs[] = {{"avx512_bf16", "full"},
                                                      {"avx2", "minimal_offloaded"},
                                                      {"avx512", "minimal"},
                                                      {"reference", "minimal_offloaded"}};
  for (const auto& [path, recompute] : runs) {
    SCOPED_TRACE(path);
    make(first);
    first += 3;
    ::setenv("STRATA_CPU_PATH", path, 1);
    if (forced_path_exists()) {
      const Tensors want = probe("packed", "bf16");
      expect_equal(probe("packed", "narrow", {"--threads", "2"}), want);
      expect_equal(probe("packed", "auto", {"--threads", "1", "--recompute", recompute}), want);
    }
    ::unsetenv("STRATA_CPU_PATH");
  }
}

TEST_P(PackedModels, EqualTheirBf16CopiesInStages) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  make(1);
  expect_equal(probe("packed", "narrow", {"--stages", "2"}), probe("packed", "bf16"));
}

const NarrowModel kGptOss = {"gpt_oss",
                             {{"hidden_size", 64},
                              {"intermediate_size", 96},
                              {"num_attention_heads", 4},
                              {"num_key_value_heads", 2},
                              {"head_dim", 32}}};

std::vector<NarrowModel> packed_models() {
  std::vector<NarrowModel> models = narrow_models();
  models.push_back(kGptOss);
  return models;
}

INSTANTIATE_TEST_SUITE_P(Families, PackedModels, ::testing::ValuesIn(packed_models()),
                         [](const auto& info) { return std::string(info.param.golden); });

// Scales and codes that no form of few bits holds, of three matrices.
class SpoiltModels : public PackedModels {
 protected:
  void spoil() {
    const std::string path = folder_.file("packed/model.safetensors");
    size_t first = 0;
    const auto embedding = [&] {
      make(first);
      const SafetensorsFile file(path);
      const auto found = std::find_if(
          file.tensors().begin(), file.tensors().end(),
          [](const TensorInfo& info) { return info.name == "model.embed_tokens.weight"; });
      return found == file.tensors().end() ? TensorInfo() : *found;
    };
    while (embedding().dtype_name != "F8_E4M3") ASSERT_LT(++first, kNumPacked);
    const TensorInfo rows = embedding();
    const SafetensorsFile file(path);
    std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(rows.begin + unused_token() * rows.dims[1]).put(0x7f);
    const std::pair<const char*, float> scales[] = {{"weight.absmax", 0x1p-120f},
                                                    {"proj.weight_scale_inv", -0x1p-124f}};
    for (const auto& [suffix, scale] : scales) {
      const auto found = std::find_if(file.tensors().begin(), file.tensors().end(),
                                      [&, end = suffix](const TensorInfo& info) {
                                        return info.dtype_name == "F32" && info.name.ends_with(end);
                                      });
      ASSERT_NE(found, file.tensors().end()) << suffix;
      bytes.seekp(found->begin).write(reinterpret_cast<const char*>(&scale), sizeof(scale));
    }
  }
  // Of which the request reads no embedding.
  int64_t unused_token() const {
    const std::string request = read_file(request_, 1 << 20);
    int64_t token = 0;
    while (request.find(fmt::format("[{},", token)) != std::string::npos ||
           request.find(fmt::format(",{},", token)) != std::string::npos ||
           request.find(fmt::format(",{}]", token)) != std::string::npos) {
      ++token;
    }
    return token;
  }
  std::string printed(const std::string& arguments, int want = 0) {
    std::string text;
    EXPECT_EQ(run_program(arguments, folder_, &text), want) << arguments << "\n" << text;
    return text;
  }
};

TEST_P(SpoiltModels, AreDequantisedByTensor) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  spoil();
  expect_equal(probe("packed", "auto"), probe("packed", "bf16"));
  expect_equal(probe("packed", "auto", {"--stages", "2"}), probe("packed", "bf16"));
  const ProbeResult refused = run_probe({.model = folder_.file("packed"),
                                         .adapters = adapters_,
                                         .request = request_,
                                         .options = {"--dtype", "bf16", "--weights", "narrow"}});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.message.find("; --weights bf16"), std::string::npos) << refused.message;
  // A plan has what is known of scales; that a code is no number a load alone finds.
  const std::string inspected = printed(fmt::format("inspect '{}'", folder_.file("packed")));
  EXPECT_NE(inspected.find("2 dequantised to bf16"), std::string::npos) << inspected;
  EXPECT_NE(inspected.find("2 tensor(s) with such values"), std::string::npos) << inspected;
  const std::string planned =
      printed(fmt::format("plan --model '{}' --dtype bf16 --tokens 1x64", folder_.file("packed")));
  EXPECT_NE(planned.find("2 dequantised to bf16"), std::string::npos) << planned;
}

INSTANTIATE_TEST_SUITE_P(Families, SpoiltModels, ::testing::Values([] {
                           NarrowModel untied = narrow_models().front();
                           untied.sizes["tie_word_embeddings"] = false;
                           return untied;
                         }()));

TEST(PackedModel, RefusesOtherMethodsByName) {
  const TempDir folder;
  std::filesystem::copy(kRoot + "qwen3/model", folder.file("model"));
  for (const char* config :
       {R"({"quant_method": "gptq", "bits": 4})", R"({"quant_method": "awq", "bits": 4})",
        R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
        R"({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"})",
        R"({"quant_method": "bitsandbytes", "load_in_8bit": true})"}) {
    object text = read_json(kRoot + "qwen3/model/config.json").as_object();
    text["quantization_config"] = boost::json::parse(config);
    std::ofstream(folder.file("model/config.json")) << boost::json::serialize(text);
    std::string printed;
    EXPECT_EQ(run_program(fmt::format("convert --model '{}' --out '{}'", folder.file("model"),
                                      folder.file("out")),
                          folder, &printed),
              2);
    const std::string method(text["quantization_config"].at("quant_method").as_string());
    EXPECT_NE(printed.find(fmt::format("quant_method '{}' is not supported", method)),
              std::string::npos)
        << printed;
  }
}

}  // namespace
}  // namespace strata::golden
