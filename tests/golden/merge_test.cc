// SPDX-License-Identifier: Apache-2.0
// Merged models against the same adapters at run time (which the other goldens hold against PEFT)
// and against PEFT's merge_and_unload, for every family.
#include "tests/golden/export_run.h"

namespace strata::golden {
namespace {

// Every tensor of a directory.
Tensors read_all(const std::string& dir) {
  Tensors all;
  for (const auto& file : std::filesystem::directory_iterator(dir)) {
    if (file.path().extension() != ".safetensors") continue;
    all.merge(read_tensors(file.path()));
  }
  return all;
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
    return logits_of(row.model, row.adapters, request_of(row, adapter + 1, folder));
  }
  [[nodiscard]] Tensors plain(const std::string& model) const {
    return logits_of(model, {}, request_of(row, 0, folder));
  }
  // What the report says of the tensors that rounding changed: the relative error.
  [[nodiscard]] std::map<std::string, double> printed_errors() const {
    const boost::json::value report = read_json(folder.file("report.json"));
    std::map<std::string, double> errors;
    for (const auto& tensor : report.at("tensors").as_array()) {
      const double relative = tensor.at("relative_error").to_number<double>();
      if (relative > 0) errors[std::string(tensor.at("name").as_string())] = relative;
    }
    return errors;
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

// A sum of the sequence's log probabilities with signs of their own: what is asked of a probe.
struct SignedSum {
  std::vector<double> signs;
  std::string request;  // path

  SignedSum(const GoldenRow& row, uint64_t seed, const TempDir& folder) {
    const boost::json::array tokens =
        read_json(row.request).at("sequences").at(0).at("tokens").as_array();
    boost::json::array targets, weights;
    uint64_t state = seed * 2 + 1;
    for (size_t i = 0; i < tokens.size(); ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      signs.push_back((state >> 62 & 1) != 0 ? 1.0 : -1.0);
      targets.push_back(tokens[(i + 1 + (state >> 40)) % tokens.size()]);
      weights.emplace_back(signs.back());
    }
    const boost::json::object sequence = {
        {"tokens", tokens}, {"targets", targets}, {"weights", weights}};
    request = folder.file(fmt::format("sum{}.json", seed));
    std::ofstream(request) << boost::json::serialize(
        boost::json::object{{"sequences", {sequence}}, {"want", {"logprobs", "param_grads"}}});
  }
  [[nodiscard]] Tensors probe(const std::string& model) const {
    const ProbeResult result =
        run_probe({.model = model, .request = request, .options = {"--dtype", "f32"}});
    EXPECT_EQ(result.exit_code, 0) << result.message;
    return result.tensors;
  }
  [[nodiscard]] double of(const Tensors& answer) const {
    double sum = 0;
    const std::vector<float>& logprobs = answer.at("logprobs").values;
    for (size_t i = 0; i < signs.size(); ++i) sum += signs[i] * static_cast<double>(logprobs.at(i));
    return sum;
  }
};

// In 16 bits the log probabilities move by what was printed. To first order a sum f of them moves
// by the sum of df/dw times the error of each weight w. Errors of rounding are independent of each
// other and as large, against their weights, as the printed relative error e of the tensor: so f
// moves by sigma^2 = sum over tensors of e^2 times the sum over weights of (w df/dw)^2, and by 5
// sigma at most (normal: sums of many; beyond it once in two million). Errors of e of 0.2 % change
// the gradients themselves by little more than that.
TEST_P(MergedModels, MoveByWhatIsPrinted) {
  const GoldenRow& row = GetParam();
  // A router or an indexer whose choice turns round moves all that follows.
  if (row.name.starts_with("deepseek_v4") || row.name.starts_with("gpt_oss")) {
    GTEST_SKIP() << "makes choices";
  }
  constexpr double kSigmas = 5, kSummation = 2e-5;
  for (size_t k = 0; k < row.adapters.size(); ++k) {
    SCOPED_TRACE(row.adapters[k]);
    const TempDir folder;
    const Merge merge{row, k, folder};
    std::string printed;
    merge.write("convert --type f32", folder.file("f32"), &printed);
    const std::string exact = folder.file("f32"), rounded = folder.file("merged");
    merge.write("merge", rounded, &printed);
    if (printed.find("no value was rounded") != std::string::npos) continue;
    const std::map<std::string, double> relative = merge.printed_errors();
    const Tensors weights = by_expert(read_all(exact));
    for (const uint64_t seed : {1, 2, 3}) {
      const SignedSum sum(row, seed, folder);
      const Tensors before = sum.probe(exact), after = sum.probe(rounded);
      double variance = 0;
      for (const auto& [name, error] : relative) {
        const std::vector<float>& w = weights.at(name).values;
        const std::vector<float>& d = before.at("param_grad." + name).values;
        double squares = 0;
        for (size_t i = 0; i < w.size(); ++i) {
          squares += std::pow(static_cast<double>(w[i]) * static_cast<double>(d.at(i)), 2);
        }
        variance += error * error * squares;
      }
      const double sigma = std::sqrt(variance);
      const double moved = std::fabs(sum.of(after) - sum.of(before));
      const double size = *std::max_element(
          before.at("logprobs").values.begin(), before.at("logprobs").values.end(),
          [](float a, float b) { return std::fabs(a) < std::fabs(b); });
      EXPECT_GT(sigma, 0);
      EXPECT_LE(moved, kSigmas * sigma + kSummation * std::fabs(size) *
                                             std::sqrt(static_cast<double>(sum.signs.size())))
          << moved / sigma << " sigmas\n"
          << printed;
    }
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
  EXPECT_NE(fault(merge + "--adapter nowhere").find("want a LoRA adapter as PEFT saves it"),
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

// However early a merge or a conversion is killed, there is the whole model under its name or
// nothing.
TEST(Merging, KilledLeavesNothingUnderItsName) {
  const std::string commands[] = {
      fmt::format("merge --model '{}' --adapter '{}'", kModel, kAdapter),
      fmt::format("convert --model '{}' --layout stacked --shard-size 40KiB", kModel),
      fmt::format("convert --model '{}' --to gguf", kModel)};
  for (const std::string& command : commands) {
    SCOPED_TRACE(command);
    int num_gone = 0;
    for (int milliseconds = 1; milliseconds < 60; milliseconds += 6) {
      const TempDir folder;
      const std::string out = folder.file("out");
      static_cast<void>(
          std::system(fmt::format("timeout -s KILL 0.{:03} '{}' {} --out '{}' > /dev/null 2>&1",
                                  milliseconds, STRATA_BINARY, command, out)
                          .c_str()));
      if (!file_exists(out)) {
        ++num_gone;
        continue;
      }
      EXPECT_LE(largest_logit_difference(out, out, folder), 0);
    }
    EXPECT_GE(num_gone, 1);
  }
}

}  // namespace
}  // namespace strata::golden
