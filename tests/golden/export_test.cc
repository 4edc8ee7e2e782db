// SPDX-License-Identifier: Apache-2.0
// Models that are taken out: merged with their adapters (against the same adapters at run time,
// which the other goldens hold against PEFT), as GGUF and in stacks (to the bit), for every family.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/safetensors.h"
#include "tests/base/temp_dir.h"
#include "tests/golden/probe_run.h"

namespace strata::golden {
namespace {

using testing::TempDir;

// Runs the program; its exit code, and what it printed in `out`.
int run_program(const std::string& arguments, const TempDir& folder, std::string* out = nullptr) {
  const std::string printed = folder.file("printed.txt");
  const int status =
      std::system(fmt::format("'{}' {} > '{}' 2>&1", STRATA_BINARY, arguments, printed).c_str());
  if (out != nullptr) *out = read_file(printed, 1 << 20);
  return WEXITSTATUS(status);
}

std::vector<GoldenRow> rows_of(const char* request, bool with_adapters) {
  std::vector<GoldenRow> rows;
  for (const GoldenRow& row : read_goldens()) {
    const bool fits = row.name.substr(row.name.find('/') + 1) == request;
    if (fits && (!with_adapters || !row.adapters.empty())) rows.push_back(row);
  }
  return rows;
}

std::string name_of(const ::testing::TestParamInfo<GoldenRow>& info) {
  std::string name = info.param.name.substr(0, info.param.name.find('/'));
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

// The golden's tokens as one sequence, with an adapter or without one (0): logits.
std::string request_of(const GoldenRow& row, size_t adapter, const TempDir& folder) {
  const boost::json::value golden = read_json(row.request);
  boost::json::object sequence;
  sequence["tokens"] = golden.at("sequences").at(0).at("tokens");
  if (adapter > 0) sequence["adapter"] = adapter;
  boost::json::array sequences;
  sequences.emplace_back(std::move(sequence));
  boost::json::object request;
  request["sequences"] = std::move(sequences);
  request["want"] = {"logits"};
  const std::string path = folder.file(fmt::format("request{}.json", adapter));
  std::ofstream(path) << boost::json::serialize(request);
  return path;
}

struct Difference {
  double largest = 0, of = 0;          // the largest difference, and value
  double squares = 0, squares_of = 0;  // sums of both
  double count = 0;
  [[nodiscard]] double rms() const { return std::sqrt(squares / count); }
  [[nodiscard]] double rms_of() const { return std::sqrt(squares_of / count); }
};
Difference difference(const Tensors& a, const Tensors& b) {
  Difference out;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.values.size() != tensor.values.size()) {
      ADD_FAILURE() << name;
      continue;
    }
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      const auto value = static_cast<double>(tensor.values[i]);
      const double error = value - static_cast<double>(found->second.values[i]);
      out.of = std::max(out.of, std::fabs(value));
      out.largest = std::max(out.largest, std::fabs(error));
      out.squares += error * error;
      out.squares_of += value * value;
      out.count += 1;
    }
  }
  return out;
}

class MergedModels : public ::testing::TestWithParam<GoldenRow> {};

// What one adapter makes of a model, and where that is written.
struct Merge {
  const GoldenRow& row;
  size_t adapter;
  const TempDir& folder;

  // "merge", or "convert --type f32".
  void write(const std::string& command, const std::string& out, std::string* printed) const {
    const std::string arguments =
        fmt::format("{} --model '{}' --adapter '{}' --out '{}' --report '{}'", command, row.model,
                    row.adapters[adapter], out, folder.file("report.json"));
    ASSERT_EQ(run_program(arguments, folder, printed), 0) << *printed;
  }
  [[nodiscard]] Tensors adapted() const {
    return logits(row.model, row.adapters, request_of(row, adapter + 1, folder));
  }
  [[nodiscard]] Tensors plain(const std::string& model) const {
    return logits(model, {}, request_of(row, 0, folder));
  }
  static Tensors logits(const std::string& model, const std::vector<std::string>& adapters,
                        const std::string& request) {
    const ProbeResult result = run_probe(
        {.model = model, .adapters = adapters, .request = request, .options = {"--dtype", "f32"}});
    EXPECT_EQ(result.exit_code, 0) << result.message;
    return result.tensors;
  }
  // Of the weights, relative and of independent roundings: the root of the sum of the squares of
  // what the report says of the tensors.
  [[nodiscard]] double printed_error() const {
    const boost::json::value report = read_json(folder.file("report.json"));
    double sum = 0;
    for (const auto& tensor : report.at("tensors").as_array()) {
      const double relative = tensor.at("relative_error").to_number<double>();
      sum += relative * relative;
    }
    return std::sqrt(sum);
  }
};

// In f32 a merge moves each weight by a rounding of f32: the logits differ by what the order of
// summation makes, as between CPU paths.
TEST_P(MergedModels, EqualTheirAdapters) {
  const GoldenRow& row = GetParam();
  constexpr double kF32 = 2e-5;
  for (size_t k = 0; k < row.adapters.size(); ++k) {
    SCOPED_TRACE(row.adapters[k]);
    const TempDir folder;
    const Merge merge{row, k, folder};
    std::string printed;
    merge.write("merge", folder.file("merged"), &printed);
    const bool is_rounded = printed.find("no value was rounded") == std::string::npos;
    if (is_rounded) merge.write("convert --type f32", folder.file("f32"), &printed);
    const Tensors want = merge.adapted();
    const Tensors got = merge.plain(folder.file(is_rounded ? "f32" : "merged"));
    const Difference d = difference(want, got);
    const Difference moved = difference(want, merge.plain(row.model));
    EXPECT_GT(moved.largest, 1e-3 * moved.of) << "the adapter changes nothing";
    EXPECT_LE(d.largest, kF32 * d.of);
  }
}

// In 16 bits the logits move by what was printed: at these depths a relative error of the weights
// becomes one of about the same size in the logits, and `kGain` times as much at most.
TEST_P(MergedModels, MoveByWhatIsPrinted) {
  const GoldenRow& row = GetParam();
  // A router or an indexer whose choice turns round moves all that follows.
  if (row.name.starts_with("deepseek_v4")) GTEST_SKIP() << "makes choices";
  constexpr double kGain = 3;
  for (size_t k = 0; k < row.adapters.size(); ++k) {
    SCOPED_TRACE(row.adapters[k]);
    const TempDir folder;
    const Merge merge{row, k, folder};
    std::string printed;
    merge.write("merge", folder.file("merged"), &printed);
    if (printed.find("no value was rounded") != std::string::npos) continue;
    const Difference d = difference(merge.adapted(), merge.plain(folder.file("merged")));
    const double summation = 2e-5;
    EXPECT_LE(d.rms(), (kGain * merge.printed_error() + summation) * d.rms_of()) << printed;
  }
}
INSTANTIATE_TEST_SUITE_P(Families, MergedModels, ::testing::ValuesIn(rows_of("main", true)),
                         name_of);

struct MergedRow {
  std::string golden, adapter;
};
void PrintTo(const MergedRow& row, std::ostream* out) { *out << row.golden << row.adapter; }

const std::string kRoot = STRATA_SOURCE_DIR "/tests/golden/";

std::vector<MergedRow> read_merged() {
  std::vector<MergedRow> rows;
  const boost::json::value list = read_json(kRoot + "merged/merged.json");
  for (const auto& row : list.as_array()) {
    rows.push_back(
        {std::string(row.at("golden").as_string()), std::string(row.at("adapter").as_string())});
  }
  return rows;
}

class MergedByPeft : public ::testing::TestWithParam<MergedRow> {};

// The first values of every tensor that PEFT's merge_and_unload changes (tools/golden/
// make_merged.py), and no other tensor is changed.
TEST_P(MergedByPeft, HaveTheSameWeights) {
  const auto& [golden, adapter] = GetParam();
  const TempDir folder;
  const std::string model = kRoot + golden + "/model";
  const std::string out = folder.file("merged");
  std::string printed;
  ASSERT_EQ(run_program(fmt::format("convert --model '{}' --adapter '{}' --type f32 --out '{}'",
                                    model, kRoot + golden + "/" + adapter, out),
                        folder, &printed),
            0)
      << printed;
  const auto read_all = [](const std::string& dir) {
    Tensors all;
    for (const auto& file : std::filesystem::directory_iterator(dir)) {
      if (file.path().extension() != ".safetensors") continue;
      all.merge(read_tensors(file.path()));
    }
    return all;
  };
  constexpr double kBar = 2e-6;
  const Tensors ours = read_all(out);
  const Tensors base = read_all(model);
  const Tensors peft =
      read_tensors(fmt::format("{}merged/{}_{}.safetensors", kRoot, golden, adapter));
  for (const auto& [name, tensor] : base) {
    const auto merged = ours.find(name);
    ASSERT_NE(merged, ours.end()) << name;
    const auto want = peft.find(name);
    EXPECT_EQ(want != peft.end(), merged->second.values != tensor.values) << name;
    if (want == peft.end()) continue;
    double largest = 0;
    double error = 0;
    for (size_t i = 0; i < want->second.values.size(); ++i) {
      const auto value = static_cast<double>(want->second.values[i]);
      largest = std::max(largest, std::fabs(value));
      error = std::max(error, std::fabs(value - static_cast<double>(merged->second.values[i])));
    }
    EXPECT_LE(error, kBar * largest) << name;
  }
}
INSTANTIATE_TEST_SUITE_P(Goldens, MergedByPeft, ::testing::ValuesIn(read_merged()),
                         [](const auto& info) {
                           return info.param.golden + "_" + info.param.adapter;
                         });

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

std::string bytes_of(const GgufModel& model, const GgufModel::Tensor& tensor) {
  std::string bytes(static_cast<size_t>(tensor.info->end - tensor.info->begin), '\0');
  model.files()[tensor.file].read_bytes(*tensor.info, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// Of goldens that llama.cpp cannot run (layers without experts among such that have them; heads of
// delta nets whose values are wider than their keys; no experts in DeepSeek's) a model of random
// weights that it can: golden.model is that then.
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
                      .request = kRoot + row.golden + "/main.json",
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
        difference(Merge::logits(golden.model, {}, request), Merge::logits(out, {}, request));
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

const std::string kModel = kRoot + "qwen3/model";
const std::string kAdapter = kRoot + "qwen3/a";

double largest_logit_difference(const std::string& a, const std::string& b, const TempDir& folder) {
  const GoldenRow row = {.name = {},
                         .model = a,
                         .adapters = {},
                         .request = kRoot + "qwen3/main.json",
                         .expected = {},
                         .noise = {}};
  const std::string request = request_of(row, 0, folder);
  return difference(Merge::logits(a, {}, request), Merge::logits(b, {}, request)).largest;
}

// Two halves of an adapter are the whole; a name that exists is no weight's.
TEST(Merging, WeightsAddUp) {
  const TempDir folder;
  const auto merge = [&](const std::string& adapters, const char* out) {
    std::string printed;
    EXPECT_EQ(run_program(fmt::format("merge --model '{}' {} --out '{}'", kModel, adapters,
                                      folder.file(out)),
                          folder, &printed),
              0)
        << printed;
    return folder.file(out);
  };
  std::filesystem::copy(kAdapter, folder.file("a:0.25"));
  const std::string whole = merge(fmt::format("--adapter '{}'", kAdapter), "whole");
  const std::string halves =
      merge(fmt::format("--adapter '{0}:0.25' --adapter '{0}:0.75'", kAdapter), "halves");
  const std::string named = merge(fmt::format("--adapter '{}'", folder.file("a:0.25")), "named");
  const std::string part = merge(fmt::format("--adapter '{}:0.5'", folder.file("a:0.25")), "part");
  EXPECT_LE(largest_logit_difference(whole, halves, folder), 2e-5);
  EXPECT_EQ(largest_logit_difference(whole, named, folder), 0);
  EXPECT_GT(largest_logit_difference(whole, part, folder), 0.01);
  EXPECT_GT(largest_logit_difference(kModel, part, folder), 0.01);
}

TEST(Merging, RefusesWhatCannotBe) {
  const TempDir folder;
  const auto fault = [&](const std::string& arguments) {
    std::string printed;
    EXPECT_EQ(run_program(arguments, folder, &printed), 2) << printed;
    return printed;
  };
  const std::string merge = fmt::format("merge --model '{}' --out '{}' ", kModel, folder.file("o"));
  EXPECT_NE(fault(merge).find("--adapter: is missing"), std::string::npos);
  EXPECT_NE(fault(merge + "--adapter " + kAdapter + ":x").find("'x' is no weight"),
            std::string::npos);
  EXPECT_NE(fault(merge + "--adapter " + kAdapter + ":inf").find("'inf' is no weight"),
            std::string::npos);
  EXPECT_NE(fault(merge + "--adapter " + kRoot + "llama2/a"), "");
  EXPECT_NE(
      fault(fmt::format("merge --model '{}' --adapter '{}' --out '{}'", kModel, kAdapter, kModel))
          .find("exists; choose another name"),
      std::string::npos);
  EXPECT_NE(
      fault(fmt::format("convert --model '{}' --type q8_0 --out '{}'", kModel, folder.file("o")))
          .find("add --to gguf"),
      std::string::npos);
  EXPECT_FALSE(file_exists(folder.file("o")));
}

// However early a merge is killed, there is the whole model under its name or nothing.
TEST(Merging, KilledLeavesNothingUnderItsName) {
  int num_gone = 0;
  for (int milliseconds = 1; milliseconds < 60; milliseconds += 4) {
    const TempDir folder;
    const std::string out = folder.file("merged");
    static_cast<void>(std::system(
        fmt::format("timeout -s KILL 0.{:03} '{}' merge --model '{}' --adapter '{}' --out '{}' "
                    "> /dev/null 2>&1",
                    milliseconds, STRATA_BINARY, kModel, kAdapter, out)
            .c_str()));
    if (!file_exists(out)) {
      ++num_gone;
      continue;
    }
    EXPECT_TRUE(file_exists(out + "/config.json"));
    EXPECT_LE(largest_logit_difference(out, out, folder), 0);
  }
  EXPECT_GE(num_gone, 1);
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
