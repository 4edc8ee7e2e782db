// SPDX-License-Identifier: Apache-2.0
// gemm_dw: every path against sums in double, the sums against the complex step of the forward
// reference, and one chain over the tokens whatever the passes, the threads and the company.
#include <complex>

#include "ops/ref/gemm.h"
#include "tests/ops/gemm_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

struct Case {
  int64_t outputs = 0;
  int64_t inputs = 0;
  std::vector<int64_t> ends;  // of the sequences
  int64_t stride = 0;
};

const Case kCases[] = {
    {.outputs = 3, .inputs = 5, .ends = {}},
    {.outputs = 3, .inputs = 5, .ends = {0, 0}},
    {.outputs = 1, .inputs = 1, .ends = {1}},
    {.outputs = 8, .inputs = 64, .ends = {1, 2, 3}},
    {.outputs = 65, .inputs = 63, .ends = {4, 4, 9}, .stride = 3},
    {.outputs = 32, .inputs = 200, .ends = {17, 30}},
    {.outputs = 200, .inputs = 32, .ends = {17, 30}},
    {.outputs = 130, .inputs = 1, .ends = {5, 12}, .stride = 1},
    {.outputs = 7, .inputs = 129, .ends = {1031}},
    {.outputs = 129, .inputs = 7, .ends = {515, 1100}},
    {.outputs = 2070, .inputs = 70, .ends = {6}},
    {.outputs = 24, .inputs = 25, .ends = {3, 24, 49}},
};

TEST(GemmDw, MatchesSumsInDouble) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    for (const DType dtype : product_dtypes()) {
      for (const Case& c : kCases) {
        SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(dtype)) + " " +
                     std::to_string(c.outputs) + " x " + std::to_string(c.inputs));
        const int64_t tokens = c.ends.empty() ? 0 : c.ends.back();
        const Buffer dy = random_buffer(dtype, {tokens, c.outputs},
                                        {.seed = 1, .row_stride = c.outputs + c.stride});
        const Buffer x = random_buffer(dtype, {tokens, c.inputs},
                                       {.seed = 2, .row_stride = c.inputs + c.stride});
        Buffer dw = random_buffer(DType::kF32, {c.outputs, c.inputs},
                                  {.seed = 3, .row_stride = c.inputs + c.stride});
        std::vector<double> want = dw.values();
        std::vector<double> magnitude = absolute(want);
        ref::gemm_dw<double>(tokens, c.outputs, c.inputs, dy.values().data(), x.values().data(),
                             want.data());
        ref::gemm_dw<double>(tokens, c.outputs, c.inputs, absolute(dy.values()).data(),
                             absolute(x.values()).data(), magnitude.data());
        gemm_dw(backend, dy, x, c.ends, dw);
        expect_close(dw, want, dot_tolerance(2 * tokens + 1, DType::kF32), magnitude);
      }
    }
  }
}

TEST(GemmDw, ReferenceMatchesComplexStep) {
  using C = std::complex<double>;
  constexpr int64_t kTokens = 4, kOutputs = 3, kInputs = 5;
  const auto draw = [](int64_t count, uint64_t seed) {
    return random_buffer(DType::kF32, {count}, {.seed = seed}).values();
  };
  const std::vector<double> x = draw(kTokens * kInputs, 1), w = draw(kOutputs * kInputs, 2),
                            g = draw(kTokens * kOutputs, 3);
  std::vector<double> dw(w.size());
  ref::gemm_dw<double>(kTokens, kOutputs, kInputs, g.data(), x.data(), dw.data());
  constexpr double kStep = 1e-30;
  const std::vector<C> cx(x.begin(), x.end());
  for (size_t i = 0; i < w.size(); ++i) {
    std::vector<C> cw(w.begin(), w.end()), y(kTokens * kOutputs);
    cw[i] += C(0, kStep);
    ref::gemm<C>(kTokens, kOutputs, kInputs, cx.data(), cw.data(), {}, C(1), nullptr, nullptr,
                 y.data());
    C loss = 0;
    for (size_t j = 0; j < y.size(); ++j) loss += g[j] * y[j];
    EXPECT_NEAR(dw[i], loss.imag() / kStep, 1e-13) << i;
  }
}

// All at once, one call for each sequence, and any number of threads.
TEST(GemmDw, BitsDependOnTheSequencesOnly) {
  const std::vector<int64_t> ends = {1, 4, 4, 700, 1403, 1410};
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 1);
    for (const DType dtype : product_dtypes()) {
      for (const auto& [outputs, inputs] : {std::pair{32, 150}, {150, 32}, {70, 90}}) {
        SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(dtype)) + " " +
                     std::to_string(outputs));
        const Buffer dy = random_buffer(dtype, {ends.back(), outputs}, {.seed = 1});
        const Buffer x = random_buffer(dtype, {ends.back(), inputs}, {.seed = 2});
        const Buffer start = random_buffer(DType::kF32, {outputs, inputs}, {.seed = 3});
        Buffer want(start);
        gemm_dw(backend, dy, x, ends, want);
        for (const int threads : {2, 7}) {
          CpuBackend other(path, threads);
          Buffer dw(start);
          gemm_dw(other, dy, x, ends, dw);
          expect_same_bits(dw, want);
        }
        Buffer dw(start);
        int64_t begin = 0;
        for (const int64_t end : ends) {
          const int64_t own[] = {end - begin};
          gemm_dw(backend, dy.view().slice_rows(begin, end), x.view().slice_rows(begin, end), own,
                  dw);
          begin = end;
        }
        expect_same_bits(dw, want);
      }
      EXPECT_LE(backend.scratch().high_water(), most_scratch_bytes());
    }
  }
}

// Columns of dw do not depend on which other columns or rows are made with them.
TEST(GemmDw, BitsDependOnTheOutputOnly) {
  const int64_t ends[] = {37, 75};
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    for (const DType dtype : product_dtypes()) {
      const Buffer dy = random_buffer(dtype, {75, 90}, {.seed = 1});
      const Buffer x = random_buffer(dtype, {75, 100}, {.seed = 2});
      Buffer whole = filled_buffer(DType::kF32, {90, 100}, 0.5);
      gemm_dw(backend, dy, x, ends, whole);
      Buffer parts = filled_buffer(DType::kF32, {90, 100}, 0.5);
      for (const auto& [n0, n1] : {std::pair{0, 7}, {7, 90}}) {
        for (const auto& [k0, k1] : {std::pair{0, 16}, {16, 33}, {33, 100}}) {
          TensorView dw = parts.view().slice_rows(n0, n1).slice_cols(k0, k1);
          gemm_dw(backend, dy.view().slice_cols(n0, n1), x.view().slice_cols(k0, k1), ends, dw);
        }
      }
      expect_same_bits(parts, whole);
    }
  }
}

}  // namespace
}  // namespace strata::ops
