// SPDX-License-Identifier: Apache-2.0
// Merged models against the same adapters at run time (which the other goldens hold against PEFT)
// and against PEFT's merge_and_unload, for every family.
#include "tests/golden/export_run.h"

namespace strata::golden {
namespace {

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
    return logits_of(row.model, row.adapters, request_of(row, adapter + 1, folder));
  }
  [[nodiscard]] Tensors plain(const std::string& model) const {
    return logits_of(model, {}, request_of(row, 0, folder));
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
  return difference(logits_of(a, {}, request), logits_of(b, {}, request)).largest;
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

}  // namespace
}  // namespace strata::golden
