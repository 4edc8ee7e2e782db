// SPDX-License-Identifier: Apache-2.0
// gemm_dx: every path against sums in double, the sums against the complex step of the forward
// reference, and the same bits for any batch, split and number of threads.
#include <complex>
#include <numeric>

#include "ops/ref/gemm.h"
#include "tests/ops/gemm_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

struct Case {
  int64_t tokens = 0;
  int64_t outputs = 0;
  int64_t inputs = 0;
  std::vector<RunSpec> runs = {};
  float scale = 1.0f;
  int64_t stride = 0;
};

const Case kCases[] = {
    {.tokens = 0, .outputs = 3, .inputs = 5},
    {.tokens = 1, .outputs = 1, .inputs = 1},
    {.tokens = 5, .outputs = 63, .inputs = 64, .scale = 0.5f},
    {.tokens = 6, .outputs = 64, .inputs = 65, .runs = {{1, 4, 1}}},
    {.tokens = 7, .outputs = 65, .inputs = 31, .runs = {{0, 3, 9}, {3, 7, 32}}, .stride = 3},
    {.tokens = 13, .outputs = 129, .inputs = 8},
    {.tokens = 25, .outputs = 17, .inputs = 97, .scale = -1.5f},
    {.tokens = 26, .outputs = 2150, .inputs = 132, .runs = {{0, 26, 64}}},
    {.tokens = 1070, .outputs = 18, .inputs = 19, .runs = {{3, 1060, 4}}},
};

struct Problem {
  Case spec;
  Buffer dy;
  Weight w;
  std::vector<Buffer> run_x;
  std::vector<Weight> run_w;

  Problem(Backend& backend, const Case& c, DType dtype, int64_t width)
      : spec(c),
        dy(random_buffer(dtype, {c.tokens, c.outputs},
                         {.seed = 1, .row_stride = c.outputs + c.stride})),
        w(backend, dtype, c.outputs, c.inputs, width, 2) {
    for (size_t r = 0; r < c.runs.size(); ++r) {
      const int64_t rank = c.runs[r].rank;
      run_x.push_back(random_buffer(dtype, {c.tokens, rank}, {.seed = 5 + r}));
      run_w.emplace_back(backend, dtype, rank, c.inputs, tile(rank), 50 + r);
    }
  }
  static int64_t tile(int64_t rank) { return rank > 32 ? 64 : rank > 16 ? 32 : 16; }

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

  [[nodiscard]] std::vector<double> expected(bool magnitude, bool accumulate,
                                             std::vector<double> dx) const {
    const auto values = [&](const Buffer& b) {
      return magnitude ? absolute(b.values()) : b.values();
    };
    std::vector<std::vector<double>> kept;
    std::vector<ref::LowRank<double>> low;
    for (size_t r = 0; r < spec.runs.size(); ++r) {
      kept.push_back(values(run_x[r]));
      kept.push_back(values(run_w[r].rows));
    }
    for (size_t r = 0; r < spec.runs.size(); ++r) {
      low.push_back({.begin = spec.runs[r].begin,
                     .end = spec.runs[r].end,
                     .rank = spec.runs[r].rank,
                     .x = kept[2 * r].data(),
                     .w = kept[2 * r + 1].data()});
    }
    if (magnitude) dx = absolute(dx);
    ref::gemm_dx<double>(spec.tokens, spec.outputs, spec.inputs, values(dy).data(),
                         values(w.rows).data(), low, magnitude ? std::abs(spec.scale) : spec.scale,
                         accumulate, dx.data());
    return dx;
  }
};

TEST(GemmDx, MatchesSumsInDouble) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    for (const DType dtype : product_dtypes()) {
      for (const int64_t width : {16, 32, 64}) {
        for (const Case& c : kCases) {
          SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(dtype)) +
                       " width " + std::to_string(width) + " tokens " + std::to_string(c.tokens) +
                       " inputs " + std::to_string(c.inputs));
          const Problem problem(backend, c, dtype, width);
          const std::vector<LowRankSegment> runs = problem.runs();
          const GemmArgs args = {
              .x = problem.dy, .w = problem.w.panel, .runs = runs, .scale = c.scale};
          const int64_t terms = 2 * c.outputs + 2 * 64 + 3;
          for (const DType out : product_dtypes()) {
            Buffer dx(out, {c.tokens, c.inputs}, c.inputs + c.stride);
            const std::vector<double> zero(static_cast<size_t>(dx.size()));
            gemm_dx(backend, args, dx);
            expect_close(dx, problem.expected(false, false, zero), dot_tolerance(terms, out),
                         problem.expected(true, false, zero));
          }
          if (c.scale != 1.0f) continue;
          Buffer dx = random_buffer(DType::kF32, {c.tokens, c.inputs}, {.seed = 9});
          const std::vector<double> start = dx.values();
          gemm_dx(backend, args, dx, /*accumulate=*/true);
          expect_close(dx, problem.expected(false, true, start), dot_tolerance(terms, DType::kF32),
                       problem.expected(true, true, start));
        }
      }
    }
  }
}

// d(sum g y)/dx by the complex step is exact to the last digits.
TEST(GemmDx, ReferenceMatchesComplexStep) {
  using C = std::complex<double>;
  constexpr int64_t kTokens = 3, kOutputs = 4, kInputs = 5, kRank = 2;
  const auto draw = [](int64_t count, uint64_t seed) {
    return random_buffer(DType::kF32, {count}, {.seed = seed}).values();
  };
  const std::vector<double> x = draw(kTokens * kInputs, 1), w = draw(kOutputs * kInputs, 2),
                            g = draw(kTokens * kOutputs, 3), a = draw(kRank * kInputs, 4),
                            b = draw(kOutputs * kRank, 5);
  constexpr double kScale = 0.7, kStep = 1e-30;
  // dh = scale g B is what the low-rank term of gemm_dx takes; rows 1.. have the adapter.
  std::vector<double> dh(kTokens * kRank);
  ref::gemm_dx<double>(kTokens, kOutputs, kRank, g.data(), b.data(), {}, 1.0, false, dh.data());
  const ref::LowRank<double> run{
      .begin = 1, .end = kTokens, .rank = kRank, .x = dh.data(), .w = a.data()};
  std::vector<double> dx(x.size());
  ref::gemm_dx<double>(kTokens, kOutputs, kInputs, g.data(), w.data(), {&run, 1}, kScale, false,
                       dx.data());
  const std::vector<C> cw(w.begin(), w.end()), ca(a.begin(), a.end()), cb(b.begin(), b.end());
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<C> cx(x.begin(), x.end()), h(kTokens * kRank), y(kTokens * kOutputs);
    cx[i] += C(0, kStep);
    ref::gemm<C>(kTokens, kRank, kInputs, cx.data(), ca.data(), {}, C(1), nullptr, nullptr,
                 h.data());
    const ref::LowRank<C> low{
        .begin = 1, .end = kTokens, .rank = kRank, .x = h.data(), .w = cb.data()};
    ref::gemm<C>(kTokens, kOutputs, kInputs, cx.data(), cw.data(), {&low, 1}, C(kScale), nullptr,
                 nullptr, y.data());
    C loss = 0;
    for (size_t j = 0; j < y.size(); ++j) loss += g[j] * y[j];
    EXPECT_NEAR(dx[i], loss.imag() / kStep, 1e-13) << i;
  }
}

TEST(GemmDx, BitsDependOnTheRowOnly) {
  constexpr int64_t kTokens = 30, kOutputs = 4200, kInputs = 150;
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 1);
    for (const DType dtype : product_dtypes()) {
      SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(dtype)));
      const Buffer dy = random_buffer(dtype, {kTokens, kOutputs}, {.seed = 1});
      const Buffer dh = random_buffer(dtype, {kTokens, 9}, {.seed = 2});
      const Weight w(backend, dtype, kOutputs, kInputs, backend.panel_width(), 3);
      const Weight a(backend, dtype, 9, kInputs, 16, 4);
      const auto product = [&](Backend& on, const std::vector<int64_t>& index, int64_t cut) {
        const Buffer x = take_rows(dy, index);
        const Buffer h = take_rows(dh, index);
        const auto count = static_cast<int64_t>(index.size());
        Buffer dx(DType::kBF16, {count, kInputs});
        const LowRankSegment runs[] = {{.begin = 0, .end = cut, .x = h, .w = a.panel},
                                       {.begin = cut, .end = count, .x = h, .w = a.panel}};
        gemm_dx(on, {.x = x, .w = w.panel, .runs = runs}, dx);
        return dx;
      };
      std::vector<int64_t> all(kTokens);
      std::iota(all.begin(), all.end(), 0);
      const Buffer want = product(backend, all, 0);
      for (const int threads : {2, 7}) {
        CpuBackend other(path, threads);
        expect_same_bits(product(other, all, 13), want);
      }
      for (const int64_t size : {1, 2, 5, 6, 7, 12, 13, 23, 24, 25}) {
        std::vector<int64_t> some(all.rbegin(), all.rbegin() + size);
        expect_same_bits(product(backend, some, size / 2), take_rows(want, some));
      }
      EXPECT_LE(backend.scratch().high_water(), most_scratch_bytes());
    }
  }
}

// Gradients beside a product, and many small products at once: each what it is alone.
TEST(GemmDx, GradientsBesideItAreWhatTheyAreAlone) {
  constexpr int64_t kTokens = 20, kOutputs = 600, kInputs = 150;
  const std::vector<int64_t> ends = {7, kTokens};
  for (const DType dtype : product_dtypes()) {
    for (const int threads : {1, 2, 5}) {
      CpuBackend backend(choose_cpu_path(), threads);
      const Buffer dy = random_buffer(dtype, {kTokens, kOutputs}, {.seed = 1});
      const Weight w(backend, dtype, kOutputs, kInputs, backend.panel_width(), 3);
      Buffer alone(DType::kF32, {kTokens, kInputs});
      gemm_dx_blocked_with_runs(backend, {.x = dy, .w = w.panel}, alone);
      for (const size_t count : {0, 1, 2, 9, 40}) {
        std::vector<Buffer> x, got, want;
        std::vector<GemmDwArgs> beside;
        for (size_t i = 0; i < count; ++i) {
          const auto rank = static_cast<int64_t>(1 + 5 * i);
          x.push_back(random_buffer(dtype, {kTokens, rank}, {.seed = 10 + i}));
          got.push_back(random_buffer(DType::kF32, {kOutputs, rank}, {.seed = 90 + i}));
          want.push_back(got.back());
        }
        for (size_t i = 0; i < count; ++i) {
          beside.push_back({.dy = dy, .x = x[i], .sequence_ends = ends, .dw = got[i]});
          gemm_dw(backend, dy, x[i], ends, want[i]);
        }
        Buffer dx(DType::kF32, {kTokens, kInputs});
        // Short runs, which workers take whole, and long ones.
        for (const int64_t longest : {int64_t{1}, kTokens}) {
          const std::vector<Buffer> before = got;
          gemm_dx_blocked_with_runs(
              backend, {.x = dy, .w = w.panel}, dx, /*accumulate=*/false,
              {.gradients = beside, .num_rows = kTokens, .longest_run = longest, .distinct = true});
          expect_same_bits(dx, alone);
          for (size_t i = 0; i < count; ++i) {
            expect_same_bits(got[i], want[i]);
            std::memcpy(TensorView(got[i]).data, TensorView(before[i]).data,
                        static_cast<size_t>(TensorView(got[i]).num_bytes()));
          }
        }
      }
    }
  }
}

TEST(GemmDx, EachOfManyProductsIsWhatItIsAlone) {
  for (const DType dtype : product_dtypes()) {
    for (const int threads : {1, 2, 5}) {
      CpuBackend backend(choose_cpu_path(), threads);
      std::vector<Buffer> dy, got, want;
      std::vector<Weight> w;
      std::vector<GemmArgs> products;
      std::vector<TensorView> outputs;
      for (uint64_t i = 0; i < 12; ++i) {
        const auto rows = static_cast<int64_t>(i % 4), made = static_cast<int64_t>(1 + 9 * i);
        dy.push_back(random_buffer(dtype, {rows, 70}, {.seed = i}));
        w.emplace_back(backend, dtype, 70, made, 16, 20 + i);
        got.emplace_back(dtype, Shape{rows, made});
        want.emplace_back(dtype, Shape{rows, made});
      }
      for (size_t i = 0; i < dy.size(); ++i) {
        products.push_back({.x = dy[i], .w = w[i].panel, .scale = 0.25f});
        outputs.push_back(got[i]);
        gemm_dx(backend, products[i], want[i]);
      }
      gemm_dx_each(backend, products, outputs);
      for (size_t i = 0; i < dy.size(); ++i) expect_same_bits(got[i], want[i]);
    }
  }
}

// f32: blocks of kChainOutputs outputs, a chain each, the sums added in ascending order, the
// low-rank term in the last. bf16: one chain.
TEST(GemmDx, BlockedIsASumOfChains) {
  constexpr int64_t kTokens = 9, kInputs = 37, kRank = 3;
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    for (const DType dtype : product_dtypes()) {
      for (const int64_t outputs : {kChainOutputs, kChainOutputs + 1, 2 * kChainOutputs + 88}) {
        for (const bool accumulate : {false, true}) {
          const Buffer dy = random_buffer(dtype, {kTokens, outputs}, {.seed = 1});
          const Weight w(backend, dtype, outputs, kInputs, 64, 2);
          const Weight a(backend, dtype, kRank, kInputs, 16, 3);
          const Buffer low = random_buffer(dtype, {kTokens, kRank}, {.seed = 4});
          const LowRankSegment run = {.begin = 2, .end = 7, .x = low, .w = a.panel};
          Buffer got = random_buffer(DType::kF32, {kTokens, kInputs}, {.seed = 5});
          Buffer want = got;
          gemm_dx_blocked_with_runs(backend, {.x = dy, .w = w.panel, .runs = {&run, 1}}, got,
                                    accumulate);
          if (dtype == DType::kBF16 || outputs == kChainOutputs) {
            gemm_dx(backend, {.x = dy, .w = w.panel, .runs = {&run, 1}}, want, accumulate);
            expect_same_bits(got, want);
            continue;
          }
          // Sums of parts whose products were made alone.
          for (int64_t begin = 0; begin < outputs; begin += kChainOutputs) {
            const int64_t end = std::min(outputs, begin + kChainOutputs);
            GemmArgs block = {.x = dy.view().slice_cols(begin, end), .w = w.panel};
            block.w.data = w.panel.panel(begin / 64);
            block.w.rows = end - begin;
            if (end == outputs) block.runs = {&run, 1};
            Buffer part(DType::kF32, {kTokens, kInputs});
            gemm_dx(backend, block, part);
            for (int64_t i = 0; i < want.size(); ++i) {
              const auto value = static_cast<float>(part.get(i));
              const bool first = begin == 0 && !accumulate;
              want.set(i, first ? value : static_cast<float>(want.get(i)) + value);
            }
          }
          expect_same_bits(got, want);
        }
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops
