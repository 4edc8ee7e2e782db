// SPDX-License-Identifier: Apache-2.0
// gemm: every path against sums in double, and the same bits for any batch, order, split and
// number of threads.
#include "tests/ops/gemm_test.h"

#include <numeric>

#include "ops/ref/gemm.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

struct Case {
  int64_t tokens = 0;
  int64_t outputs = 0;
  int64_t inputs = 0;
  std::vector<RunSpec> runs = {};
  float scale = 1.0f;
  bool bias = false;
  bool add = false;
  DType add_type = DType::kF32;
  int64_t stride = 0;  // more than the width of x, add and y
};

const Case kCases[] = {
    {.tokens = 0, .outputs = 5, .inputs = 3},
    {.tokens = 1, .outputs = 1, .inputs = 1},
    {.tokens = 1, .outputs = 64, .inputs = 2, .bias = true},
    {.tokens = 2, .outputs = 63, .inputs = 31, .runs = {{0, 1, 1}}},
    {.tokens = 5, .outputs = 65, .inputs = 33, .scale = 0.5f, .add = true},
    {.tokens = 6, .outputs = 128, .inputs = 64, .add = true, .add_type = DType::kBF16},
    {.tokens = 7, .outputs = 129, .inputs = 65, .runs = {{2, 7, 3}}, .bias = true, .add = true},
    {.tokens = 8,
     .outputs = 100,
     .inputs = 40,
     .runs =
         {{0, 1, 8}, {1, 2, 8}, {2, 3, 1}, {3, 4, 16}, {4, 4, 5}, {5, 6, 7}, {6, 7, 2}, {7, 8, 9}}},
    {.tokens = 13, .outputs = 17, .inputs = 129, .scale = -2.0f, .stride = 3},
    {.tokens = 24, .outputs = 31, .inputs = 66, .runs = {{1, 23, 32}}},
    {.tokens = 25, .outputs = 48, .inputs = 7, .runs = {{0, 25, 64}}, .stride = 5},
    {.tokens = 49,
     .outputs = 200,
     .inputs = 257,
     .runs = {{0, 20, 17}, {20, 49, 4}},
     .scale = 3.0f},
    {.tokens = 9, .outputs = 70, .inputs = 9001, .runs = {{3, 5, 2}}},
    {.tokens = 540, .outputs = 20, .inputs = 10, .runs = {{7, 530, 8}}},
};

// The operands of one case, filled with reproducible values.
struct Problem {
  Case spec;
  Buffer x;
  Weight w;
  Buffer bias;
  Buffer add;
  std::vector<Buffer> run_x;
  std::vector<Weight> run_w;

  Problem(Backend& backend, const Case& c, DType dtype, int64_t width)
      : spec(c),
        x(random_buffer(dtype, {c.tokens, c.inputs},
                        {.seed = 1, .row_stride = c.inputs + c.stride})),
        w(backend, dtype, c.outputs, c.inputs, width, 2),
        bias(random_buffer(DType::kF32, {c.outputs}, {.seed = 3})),
        add(random_buffer(c.add_type, {c.tokens, c.outputs},
                          {.seed = 4, .row_stride = c.outputs + c.stride})) {
    run_x.reserve(c.runs.size());
    run_w.reserve(c.runs.size());
    for (size_t r = 0; r < c.runs.size(); ++r) {
      // Rows outside the run stay NaN: they must not be read.
      Buffer low(dtype, {c.tokens, c.runs[r].rank});
      const Buffer values = random_buffer(dtype, {c.tokens, c.runs[r].rank}, {.seed = 5 + r});
      const int64_t rank = c.runs[r].rank;
      for (int64_t i = c.runs[r].begin * rank; i < c.runs[r].end * rank; ++i) {
        low.set(i, values.get(i));
      }
      run_x.push_back(low);
      run_w.emplace_back(backend, dtype, c.outputs, c.runs[r].rank, width, 50 + r);
    }
  }

  [[nodiscard]] std::vector<LowRankSegment> runs() const {
    std::vector<LowRankSegment> out;
    for (size_t r = 0; r < spec.runs.size(); ++r) {
      out.push_back({.begin = spec.runs[r].begin,
                     .end = spec.runs[r].end,
                     .x = run_x[r],
                     .w = run_w[r].panel});
    }
    return out;
  }

  // The result in double, or with every operand replaced by its magnitude.
  [[nodiscard]] std::vector<double> expected(bool magnitude) const {
    const auto values = [&](const Buffer& b) {
      return magnitude ? absolute(b.values()) : b.values();
    };
    std::vector<double> y(static_cast<size_t>(spec.tokens * spec.outputs));
    std::vector<std::vector<double>> kept;
    std::vector<ref::LowRank<double>> low;
    for (size_t r = 0; r < spec.runs.size(); ++r) {
      kept.push_back(values(run_x[r]));
      kept.push_back(values(run_w[r].rows));
      low.push_back({.begin = spec.runs[r].begin,
                     .end = spec.runs[r].end,
                     .rank = spec.runs[r].rank,
                     .x = kept[2 * r].data(),
                     .w = kept[2 * r + 1].data()});
    }
    const double scale = magnitude ? std::abs(spec.scale) : spec.scale;
    const std::vector<double> b = values(bias);
    const std::vector<double> a = values(add);
    ref::gemm<double>(spec.tokens, spec.outputs, spec.inputs, values(x).data(),
                      values(w.rows).data(), low, scale, spec.bias ? b.data() : nullptr,
                      spec.add ? a.data() : nullptr, y.data());
    return y;
  }

  [[nodiscard]] Buffer run(Backend& backend, DType out) const {
    Buffer y(out, {spec.tokens, spec.outputs}, spec.outputs + spec.stride);
    const std::vector<LowRankSegment> low = runs();
    gemm(backend,
         {.x = x,
          .w = w.panel,
          .runs = low,
          .scale = spec.scale,
          .bias = spec.bias ? bias.view() : TensorView{},
          .add = spec.add ? add.view() : TensorView{}},
         y);
    return y;
  }
};

TEST(Gemm, MatchesSumsInDouble) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    for (const DType dtype : product_dtypes()) {
      for (const int64_t width : {16, 32, 64}) {
        for (const Case& c : kCases) {
          SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(dtype)) +
                       " width " + std::to_string(width) + " tokens " + std::to_string(c.tokens) +
                       " outputs " + std::to_string(c.outputs));
          const Problem problem(backend, c, dtype, width);
          const std::vector<double> want = problem.expected(false);
          const std::vector<double> magnitude = problem.expected(true);
          for (const DType out : product_dtypes()) {
            // Two roundings a term (a pair may round twice), then scale, bias and add.
            const double tolerance = dot_tolerance(2 * c.inputs + 2 * 64 + 3, out);
            expect_close(problem.run(backend, out), want, tolerance, magnitude);
          }
        }
      }
    }
  }
}

// Rows in any company: alone, reversed, and with other numbers of threads.
TEST(Gemm, BitsDependOnTheRowOnly) {
  const Case whole = {.tokens = 30, .outputs = 150, .inputs = 4500, .scale = 0.75f, .bias = true};
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 1);
    for (const DType dtype : product_dtypes()) {
      SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(dtype)));
      const int64_t width = backend.panel_width();
      const Problem problem(backend, whole, dtype, width);
      const Weight low(backend, dtype, whole.outputs, 9, width, 77);
      const Buffer low_x = random_buffer(dtype, {whole.tokens, 9}, {.seed = 78});
      const auto product = [&](Backend& on, const std::vector<int64_t>& index,
                               std::vector<int64_t> cuts) {
        const Buffer x = take_rows(problem.x, index);
        const Buffer h = take_rows(low_x, index);
        const auto count = static_cast<int64_t>(index.size());
        Buffer y(DType::kF32, {count, whole.outputs});
        std::vector<LowRankSegment> runs;
        cuts.push_back(count);
        int64_t begin = 0;
        for (const int64_t cut : cuts) {
          runs.push_back({.begin = begin, .end = cut, .x = h, .w = low.panel});
          begin = cut;
        }
        gemm(on, {.x = x, .w = problem.w.panel, .runs = runs, .scale = 0.75f}, y);
        return y;
      };
      std::vector<int64_t> all(30);
      std::iota(all.begin(), all.end(), 0);
      const Buffer want = product(backend, all, {});
      expect_same_bits(product(backend, all, {1, 2, 3, 11, 29}), want);
      for (const int threads : {2, 7}) {
        CpuBackend other(path, threads);
        expect_same_bits(product(other, all, {5}), want);
      }
      for (const int64_t size : {1, 2, 3, 5, 6, 7, 12, 13, 23, 24, 25}) {
        std::vector<int64_t> some(all.rbegin(), all.rbegin() + size);
        expect_same_bits(product(backend, some, {size / 2}), take_rows(want, some));
      }
      EXPECT_LE(backend.scratch().high_water(), most_scratch_bytes());
    }
  }
}

TEST(Gemm, ResidualMayBeTheOutput) {
  const Case c = {.tokens = 9, .outputs = 70, .inputs = 20, .add = true};
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    for (const DType out : product_dtypes()) {
      Case typed = c;
      typed.add_type = out;
      const Problem problem(backend, typed, DType::kBF16, backend.panel_width());
      const Buffer want = problem.run(backend, out);
      Buffer y(problem.add);
      gemm(backend, {.x = problem.x, .w = problem.w.panel, .add = y}, y);
      expect_same_bits(y, want);
    }
  }
}

// Products of runs are the bits of one gemm for each, and nothing else is written.
TEST(Gemm, RunsTogetherAreRunsAlone) {
  constexpr int64_t kTokens = 60, kInputs = 301, kWidest = 70;
  struct Spec {
    int64_t begin, end, rank, width;
    float scale;
  };
  const Spec specs[] = {{0, 1, 8, 16, 2.0f},    {1, 2, 32, 32, 0.5f},  {2, 2, 8, 16, 1.0f},
                        {3, 40, 70, 64, -1.0f}, {40, 41, 1, 16, 1.0f}, {43, 60, 17, 32, 3.0f}};
  for (const CpuPath path : supported_paths()) {
    for (const DType dtype : product_dtypes()) {
      SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(dtype)));
      CpuBackend backend(path, 1);
      const Buffer x = random_buffer(dtype, {kTokens, kInputs}, {.seed = 1});
      std::vector<Weight> weights;
      weights.reserve(std::size(specs));
      std::vector<SegmentProduct> runs;
      Buffer want = filled_buffer(dtype, {kTokens, kWidest}, 7.0);
      for (const Spec& spec : specs) {
        weights.emplace_back(backend, dtype, spec.rank, kInputs, spec.width, 9 + spec.rank);
        runs.push_back(
            {.begin = spec.begin, .end = spec.end, .w = weights.back().panel, .scale = spec.scale});
        gemm(backend,
             {.x = x.view().slice_rows(spec.begin, spec.end),
              .w = weights.back().panel,
              .scale = spec.scale},
             want.view().slice_rows(spec.begin, spec.end).slice_cols(0, spec.rank));
      }
      for (const int threads : {1, 2, 7}) {
        CpuBackend other(path, threads);
        Buffer got = filled_buffer(dtype, {kTokens, kWidest}, 7.0);
        gemm_runs(other, x, runs, got);
        expect_same_bits(got, want);
        gemm_runs(other, x, {}, got);
        expect_same_bits(got, want);
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops
