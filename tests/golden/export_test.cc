// SPDX-License-Identifier: Apache-2.0
// Models that are taken out as GGUF, in stacks, in nf4 and in MXFP4: equal to the bit, for every
// family.
#include <map>

#include "checkpoint/source.h"
#include "tests/golden/export_run.h"

namespace strata::golden {
namespace {

void expect_equal(const Tensors& got, const Tensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    const auto found = got.find(name);
    ASSERT_NE(found, got.end()) << name;
    ASSERT_EQ(found->second.values.size(), tensor.values.size()) << name;
    EXPECT_EQ(std::memcmp(found->second.values.data(), tensor.values.data(),
                          tensor.values.size() * sizeof(float)),
              0)
        << name;
  }
}

void expect_same_answers(const GoldenRow& row, const std::string& model, const TempDir& folder) {
  for (const char* dtype : {"f32", "bf16"}) {
    const std::string request = request_of(row, 0, folder);
    const ProbeResult want =
        run_probe({.model = row.model, .request = request, .options = {"--dtype", dtype}});
    const ProbeResult got =
        run_probe({.model = model, .request = request, .options = {"--dtype", dtype}});
    ASSERT_EQ(want.exit_code, 0) << want.message;
    ASSERT_EQ(got.exit_code, 0) << got.message;
    expect_equal(got.tensors, want.tensors);
  }
}

// A golden's model, with another config.json where GGUF cannot say its own, and the file that
// gguf-py made of it (tools/golden/make_gguf.py).
struct FileRow {
  std::string file, golden, config;
};
void PrintTo(const FileRow& row, std::ostream* out) { *out << row.file; }

std::vector<FileRow> read_files() {
  std::vector<FileRow> files;
  const boost::json::value rows = read_json(kRoot + "gguf/files.json");
  for (const auto& row : rows.as_array()) {
    const auto* config = row.as_object().if_contains("config");
    files.push_back({std::string(row.at("file").as_string()),
                     std::string(row.at("golden").as_string()),
                     config == nullptr ? "" : std::string(config->as_string())});
  }
  return files;
}

class GgufExports : public ::testing::TestWithParam<FileRow> {};

// A request of the golden: one has what trains alone.
std::string request_path(const std::string& golden) {
  const std::string folder = kRoot + golden;
  return folder +
         (std::filesystem::exists(folder + "/main.json") ? "/main.json" : "/train_params.json");
}

std::string bytes_of(const GgufModel& model, const GgufModel::Tensor& tensor) {
  std::string bytes(static_cast<size_t>(tensor.info->end - tensor.info->begin), '\0');
  model.files()[tensor.file].read_bytes(*tensor.info, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// Of goldens that llama.cpp cannot run (layers without experts among such that have them; heads of
// delta nets whose values are wider than their keys; no experts in DeepSeek's; another vocabulary
// of Gemma 4's layers) a model of random weights that it can: golden.model is that then.
bool alter_for_llama_cpp(GoldenRow& golden, const TempDir& folder) {
  boost::json::object config = read_json(golden.model + "/config.json").as_object();
  const auto set = [&](boost::json::object& of, const char* key, const boost::json::value& value) {
    if (!of.contains(key) || of.at(key) == value) return false;
    of[key] = value;
    return true;
  };
  bool changes = set(config, "mlp_only_layers", boost::json::array());
  if (const auto* width = config.if_contains("linear_key_head_dim")) {
    changes = set(config, "linear_value_head_dim", boost::json::value(*width)) || changes;
  }
  if (golden.name == "gemma4_shared") {
    const boost::json::value vocabulary = config.at("vocab_size");
    changes = set(config, "vocab_size_per_layer_input", vocabulary) || changes;
  }
  if (golden.name == "deepseek_mla") {
    changes = set(config, "first_k_dense_replace", 1) || set(config, "mlp_layer_types", nullptr);
  }
  if (!changes) return false;
  const std::string path = folder.file("config.json");
  std::ofstream(path) << boost::json::serialize(config);
  std::string printed;
  golden.model = folder.file("altered");
  EXPECT_EQ(run_program(fmt::format("init --config '{}' --dtype bf16 --seed 1 --out '{}'", path,
                                    golden.model),
                        folder, &printed),
            0)
      << printed;
  return true;
}

// Tensors have the names, types, orders and bytes that gguf-py's have, but where that file has
// attn_kv_b in two halves; and what is computed from the file is equal to the last bit.
TEST_P(GgufExports, EqualGgufPyAndComeBackToTheBit) {
  const FileRow& row = GetParam();
  const TempDir folder;
  GoldenRow golden = {.name = row.golden,
                      .model = kRoot + row.golden + "/model",
                      .adapters = {},
                      .request = request_path(row.golden),
                      .expected = {},
                      .noise = {}};
  if (!row.config.empty()) {
    std::filesystem::copy(golden.model, folder.file("model"));
    golden.model = folder.file("model");
    std::filesystem::copy_file(kRoot + "gguf/" + row.config, golden.model + "/config.json",
                               std::filesystem::copy_options::overwrite_existing);
  }
  const bool is_altered = alter_for_llama_cpp(golden, folder);
  std::string printed;
  const std::string out = folder.file("out.gguf");
  ASSERT_EQ(run_program(fmt::format("convert --model '{}' --to gguf --out '{}'", golden.model, out),
                        folder, &printed),
            0)
      << printed;
  EXPECT_NE(printed.find("no value was rounded"), std::string::npos) << printed;
  const GgufModel theirs(kRoot + "gguf/" + row.file);
  const GgufModel ours(out);
  EXPECT_EQ(ours.architecture(), theirs.architecture());
  if (is_altered && row.golden.starts_with("qwen3_5")) {  // A_log in f32 loses bits (docs/gguf.md)
    const std::string request = request_of(golden, 0, folder);
    const Difference d =
        difference(logits_of(golden.model, {}, request), logits_of(out, {}, request));
    EXPECT_LE(d.largest, 2e-5 * d.of);
    return;
  }
  expect_same_answers(golden, out, folder);
  if (is_altered) return;
  int num_equal = 0;
  for (const GgufModel::Tensor& tensor : theirs.tensors()) {
    const std::string& name = tensor.info->name;
    if (name.find("attn_k_b") != name.npos || name.find("attn_v_b") != name.npos) continue;
    const auto own = std::find_if(ours.tensors().begin(), ours.tensors().end(),
                                  [&](const auto& other) { return other.info->name == name; });
    ASSERT_NE(own, ours.tensors().end()) << name;
    EXPECT_EQ(own->info->type, tensor.info->type) << name;
    EXPECT_EQ(own->info->dims, tensor.info->dims) << name;
    EXPECT_EQ(bytes_of(ours, *own), bytes_of(theirs, tensor)) << name;
    ++num_equal;
  }
  EXPECT_GE(num_equal, 10);
}
INSTANTIATE_TEST_SUITE_P(Files, GgufExports, ::testing::ValuesIn(read_files()),
                         [](const auto& info) {
                           std::string name = info.param.file;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

// What a GGUF file cannot say is refused by its name, and nothing is written.
TEST(GgufExport, RefusesByName) {
  constexpr std::pair<const char*, const char*> kRefused[] = {
      {"deepseek_v4", "deepseek_v4 is not one of the families"},
      {"gemma3", "query_pre_attn_scalar of layer 0"},
      {"mistral_window", "sliding_window (24) of layer 0"},
      {"qwen2_window", "sliding_window (12) of layer 1"},
      {"qwen3_moe_bf16", "norm_topk_prob false"},
      {"qwen3_5", "linear_value_head_dim (16; linear_key_head_dim is 8)"},
      {"qwen3_moe", "mlp_only_layers (layer 1 has no experts)"},
      {"deepseek_mla", "n_routed_experts (none)"},
      {"gpt_oss", "swiglu_limit (1.1)"},
      {"llama4", "attention_chunk_size (8) of layer 0"},
      {"gemma4_shared", "vocab_size_per_layer_input (97; vocab_size is 89)"},
      {"zero_layers", "without layers"}};
  for (const auto& [golden, fault] : kRefused) {
    SCOPED_TRACE(golden);
    const TempDir folder;
    std::string printed;
    const std::string out = folder.file("out.gguf");
    EXPECT_EQ(run_program(fmt::format("convert --model '{}{}/model' --to gguf --out '{}'", kRoot,
                                      golden, out),
                          folder, &printed),
              2);
    EXPECT_NE(printed.find(fault), std::string::npos) << printed;
    EXPECT_FALSE(file_exists(out));
  }
}

// A golden's model with other settings and random weights.
std::string altered_model(const std::string& golden, const boost::json::object& settings,
                          const TempDir& folder) {
  boost::json::object config = read_json(kRoot + golden + "/model/config.json").as_object();
  for (const auto& [key, value] : settings) config[key] = value;
  const std::string path = folder.file("config.json");
  std::ofstream(path) << boost::json::serialize(config);
  std::string printed;
  EXPECT_EQ(run_program(fmt::format("init --config '{}' --dtype f32 --seed 1 --out '{}'", path,
                                    folder.file("altered")),
                        folder, &printed),
            0)
      << printed;
  return folder.file("altered");
}

// One row is a matrix all the same: of shared experts' gate alone the file has a list.
TEST(GgufExport, AMatrixOfOneRowStaysOne) {
  const TempDir folder;
  const GoldenRow golden = {.name = {},
                            .model = altered_model("qwen3", {{"intermediate_size", 1}}, folder),
                            .adapters = {},
                            .request = kRoot + "qwen3/main.json",
                            .expected = {},
                            .noise = {}};
  std::string printed;
  const std::string out = folder.file("out.gguf");
  ASSERT_EQ(run_program(fmt::format("convert --model '{}' --to gguf --out '{}'", golden.model, out),
                        folder, &printed),
            0)
      << printed;
  expect_same_answers(golden, out, folder);
}

// Of a kind of layers that an architecture of llama.cpp takes as given.
TEST(GgufExport, RefusesModelsWithoutOneKindOfLayers) {
  const auto types = [](const char* type) { return boost::json::array{type, type}; };
  const struct {
    const char* golden;
    boost::json::object settings;
    const char* fault;
  } kRefused[] = {
      {"qwen3_5_equal",
       {{"layer_types", types("linear_attention")}},
       "layer_types (no layer of full attention)"},
      {"qwen3_5_equal",
       {{"layer_types", types("full_attention")}},
       "layer_types (no layer of linear attention)"},
      {"qwen3_moe", {{"mlp_only_layers", {0, 1, 2}}}, "mlp_only_layers (no layer has experts)"},
      {"gemma3",
       {{"rope_parameters",
         {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}},
          {"full_attention",
           {{"rope_type", "yarn"},
            {"rope_theta", 1e4},
            {"factor", 4.0},
            {"original_max_position_embeddings", 64}}}}}},
       "cannot say what this model is: key 'gemma3.rope.scaling.type': got 'yarn'"}};
  for (const auto& [golden, settings, fault] : kRefused) {
    SCOPED_TRACE(fault);
    const TempDir folder;
    const std::string model = altered_model(golden, settings, folder);
    std::string printed;
    EXPECT_EQ(run_program(fmt::format("convert --model '{}' --to gguf --out '{}'", model,
                                      folder.file("out.gguf")),
                          folder, &printed),
              2);
    EXPECT_NE(printed.find(fault), std::string::npos) << printed;
    EXPECT_FALSE(file_exists(folder.file("out.gguf")));
  }
}

// Codes, scales and states of every projection, by bitsandbytes itself (tools/golden/make_nf4.py).
TEST(Nf4, EqualsBitsandbytes) {
  const TempDir folder;
  std::string printed;
  ASSERT_EQ(run_program(fmt::format("convert --model '{}qwen3_bf16/model' --type nf4 --out '{}'",
                                    kRoot, folder.file("nf4")),
                        folder, &printed),
            0)
      << printed;
  const SafetensorsFile theirs(kRoot + "nf4.safetensors");
  const SafetensorsFile ours(folder.file("nf4/model.safetensors"));
  const auto bytes_in = [](const SafetensorsFile& file, const TensorInfo& info) {
    std::string bytes(static_cast<size_t>(info.num_bytes()), '\0');
    file.read_bytes(info, 0, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  };
  for (const TensorInfo& tensor : theirs.tensors()) {
    const TensorInfo* own = ours.find(tensor.name);
    ASSERT_NE(own, nullptr) << tensor.name;
    EXPECT_EQ(own->dtype_name, tensor.dtype_name) << tensor.name;
    EXPECT_EQ(own->dims, tensor.dims) << tensor.name;
    EXPECT_EQ(bytes_in(ours, *own), bytes_in(theirs, tensor)) << tensor.name;
  }
  EXPECT_GE(theirs.tensors().size(), 40U);
  EXPECT_EQ(run_program(fmt::format("convert --model '{}qwen3_moe/model' --type nf4 --out '{}'",
                                    kRoot, folder.file("moe")),
                        folder, &printed),
            2);
  EXPECT_NE(printed.find("experts are no linear layers"), std::string::npos) << printed;
}

// A gpt-oss of init's weights, whose experts have rows of whole blocks.
std::string random_gpt_oss(const TempDir& folder) {
  write_file_atomic(folder.file("config.json"),
                    R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
                 "vocab_size": 97, "hidden_size": 64, "intermediate_size": 32,
                 "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
                 "head_dim": 32, "num_local_experts": 3, "num_experts_per_tok": 2})");
  std::string printed;
  EXPECT_EQ(run_program(fmt::format("init --config '{}' --out '{}'", folder.file("config.json"),
                                    folder.file("model")),
                        folder, &printed),
            0)
      << printed;
  return folder.file("model");
}

// The values of a checkpoint's or GGUF file's tensors, by their names in checkpoints.
std::map<std::string, std::vector<float>> values_in(const std::string& model) {
  const auto source = open_checkpoint(model);
  std::map<std::string, std::vector<float>> values;
  for (const CheckpointTensor& tensor : source->tensors()) {
    std::vector<float>& of = values[tensor.info.name];
    of.resize(static_cast<size_t>(tensor.info.shape.num_elements()));
    source->read_f32(tensor, 0, std::ssize(of), of.data());
  }
  return values;
}

// In safetensors experts have the values of a GGUF file of the type (which equals gguf-py's), and
// give the same bytes once more; all else keeps its own. transformers loads such a directory with
// these values (tools/golden/compare_mxfp4.py).
TEST(Mxfp4, ExpertsOfGptOssHaveTheValuesOfGguf) {
  const TempDir folder;
  const std::string model = random_gpt_oss(folder);
  const auto convert = [&](const std::string& from, const std::string& options,
                           const std::string& out) {
    std::string printed;
    EXPECT_EQ(run_program(fmt::format("convert --model '{}' --type mxfp4 {} --out '{}'", from,
                                      options, folder.file(out)),
                          folder, &printed),
              0)
        << printed;
    return folder.file(out);
  };
  const auto before = values_in(model);
  const auto ours = values_in(convert(model, "", "packed"));
  const auto gguf = values_in(convert(model, "--to gguf", "model.gguf"));
  ASSERT_EQ(ours.size(), before.size());
  int experts = 0;
  for (const auto& [name, values] : before) {
    const bool is_packed = name.find(".experts.") != std::string::npos && name.ends_with(".weight");
    EXPECT_EQ(ours.at(name), is_packed ? gguf.at(name) : values) << name;
    EXPECT_EQ(ours.at(name) == values, !is_packed) << name;
    experts += static_cast<int>(is_packed);
  }
  EXPECT_EQ(experts, 2 * 3 * 3);
  convert(folder.file("packed"), "", "again");
  const int64_t most = 1 << 20;
  EXPECT_EQ(read_file(folder.file("packed/model.safetensors"), most),
            read_file(folder.file("again/model.safetensors"), most));
  std::string printed;
  EXPECT_EQ(run_program(fmt::format("convert --model '{}qwen3/model' --type mxfp4 --out '{}'",
                                    kRoot, folder.file("no")),
                        folder, &printed),
            2);
  EXPECT_NE(printed.find("of gpt-oss' experts alone; add --to gguf"), std::string::npos) << printed;
  EXPECT_EQ(
      run_program(fmt::format("convert --model '{}gpt_oss_bf16/model' --type mxfp4 --out '{}'",
                              kRoot, folder.file("no")),
                  folder, &printed),
      2);
  EXPECT_NE(printed.find("has rows of 20, which are no whole blocks of 32"), std::string::npos)
      << printed;
}

TEST(Converting, RefusesValuesThatF16DoesNotHold) {
  const TempDir folder;
  std::string printed;
  std::filesystem::copy(kRoot + "qwen3/model", folder.file("model"));
  // The last value of the file, of a tensor in f32.
  std::fstream file(folder.file("model/model.safetensors"),
                    std::ios::in | std::ios::out | std::ios::binary);
  const float large = 1e6f;
  file.seekp(-static_cast<int>(sizeof(large)), std::ios::end);
  file.write(reinterpret_cast<const char*>(&large), sizeof(large));
  file.close();
  EXPECT_EQ(run_program(fmt::format("convert --model '{}' --type f16 --out '{}'",
                                    folder.file("model"), folder.file("out")),
                        folder, &printed),
            2);
  EXPECT_NE(printed.find("has values up to 1e+06, more than F16 holds"), std::string::npos)
      << printed;
  EXPECT_FALSE(file_exists(folder.file("out")));
}

// The same values are as good in another type, and files that cannot be written cost no run.
TEST(Converting, MeasuresInOneArithmeticAndFindsRoomFirst) {
  const std::string model = STRATA_SOURCE_DIR "/models/tiny-qwen3";
  const std::string convert = fmt::format("convert --model '{}' ", model);
  const TempDir folder;
  const std::string examples = folder.file("two.jsonl");
  std::ofstream(examples) << R"({"prompt": "What is", "completion": "this?"})" << "\n";
  std::string printed;
  ASSERT_EQ(run_program(fmt::format("{} --type f32 --data '{}' --out '{}'", convert, examples,
                                    folder.file("f32")),
                        folder, &printed),
            0)
      << printed;
  EXPECT_NE(printed.find("after (+0.000 %)"), std::string::npos) << printed;
  ASSERT_EQ(run_program(fmt::format("{} --to gguf --out '{}' --report '{}'", convert,
                                    folder.file("new/folder/m.gguf"), folder.file("other/r.json")),
                        folder, &printed),
            0)
      << printed;
  EXPECT_TRUE(file_exists(folder.file("new/folder/m.gguf")));
  EXPECT_TRUE(file_exists(folder.file("other/r.json")));
  const std::string faults[] = {
      fmt::format("{} --to gguf --out '{}/'", convert, folder.file("no")),
      fmt::format("{} --out '{}' --report '{}'", convert, folder.file("no"), folder.path())};
  for (const std::string& arguments : faults) {
    EXPECT_EQ(run_program(arguments, folder, &printed), 2) << printed;
    EXPECT_NE(printed.find("is a folder; give the name of a file"), std::string::npos) << printed;
    EXPECT_FALSE(file_exists(folder.file("no")));
  }
}

class StackedModels : public ::testing::TestWithParam<GoldenRow> {};

TEST_P(StackedModels, AreEqualThereAndBack) {
  const GoldenRow& row = GetParam();
  const TempDir folder;
  const auto convert = [&](const std::string& from, const char* layout, const char* to) {
    std::string printed;
    EXPECT_EQ(run_program(fmt::format("convert --model '{}' --layout {} --shard-size 200KiB "
                                      "--out '{}'",
                                      from, layout, folder.file(to)),
                          folder, &printed),
              0)
        << printed;
    EXPECT_NE(printed.find("no value was rounded"), std::string::npos) << printed;
  };
  convert(row.model, "stacked", "stacked");
  convert(folder.file("stacked"), "layers", "layers");
  convert(folder.file("layers"), "stacked", "again");
  int num_files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder.file("stacked"))) {
    const std::string name = file.path().filename();
    EXPECT_EQ(testing::read_bytes(file.path()), testing::read_bytes(folder.file("again/" + name)))
        << name;
    ++num_files;
  }
  EXPECT_GE(num_files, 2);
  expect_same_answers(row, folder.file("stacked"), folder);
}
INSTANTIATE_TEST_SUITE_P(Families, StackedModels, ::testing::ValuesIn(rows_of("main", false)),
                         name_of);

}  // namespace
}  // namespace strata::golden
