// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw.h"

#include "ops/ref/adamw.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;

const AdamWArgs kSettings[] = {
    {},
    {.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .step = 1},
    {.lr = 1e-2, .beta1 = 0, .beta2 = 0, .eps = 1e-8, .step = 3},
    {.lr = 1, .beta2 = 0.999999, .weight_decay = 0.01, .grad_scale = 1e-3, .step = 100000},
    {.lr = 0, .step = 7},
};

TEST(AdamW, MatchesReference) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{16}, int64_t{17},
                          int64_t{127}, int64_t{4096}, int64_t{70001}}) {
    for (const AdamWArgs& args : kSettings) {
      SCOPED_TRACE("n " + std::to_string(n) + ", step " + std::to_string(args.step));
      const Buffer g = random_buffer(kF32, {n}, {.seed = 1, .scale = 1e-3, .shift = 3});
      const Buffer p = random_buffer(kF32, {n}, {.seed = 2, .shift = 1});
      const Buffer m = random_buffer(kF32, {n}, {.seed = 3, .scale = 1e-3});
      Buffer v = random_buffer(kF32, {n}, {.seed = 4, .scale = 1e-6});
      for (int64_t i = 0; i < n; ++i) v.set(i, std::abs(v.get(i)));
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {p, m, v};
        adamw(backend, args, g, out[0], out[1], out[2]);
        return out;
      });
      auto want_p = p.values();
      auto want_m = m.values();
      auto want_v = v.values();
      ref::adamw(args, g.values(), want_p, want_m, want_v);
      // m is a difference of terms as large as these; p moves by lr times the update's magnitude.
      std::vector<double> m_size(want_m.size());
      std::vector<double> p_size(want_p.size());
      for (size_t i = 0; i < want_m.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        m_size[i] = std::abs(m.get(at)) + std::abs(g.get(at) * args.grad_scale);
        const double root = std::sqrt(want_v[i] / (1 - std::pow(args.beta2, args.step)));
        const double step = m_size[i] / (1 - std::pow(args.beta1, args.step)) / (root + args.eps);
        p_size[i] = std::abs(p.get(at)) + args.lr * step;
      }
      expect_close(outputs[1], want_m, dot_tolerance(5, kF32), m_size);
      expect_close(outputs[2], want_v, dot_tolerance(7, kF32));
      expect_close(outputs[0], want_p, dot_tolerance(14, kF32), p_size);
    }
  }
}

// Ten steps from zero moments stay as close to the double trajectory as fp32 allows.
TEST(AdamW, TenSteps) {
  const int64_t n = 1000;
  AdamWArgs args{.lr = 1e-3, .weight_decay = 0.1};
  Buffer p = random_buffer(kF32, {n}, {.seed = 2});
  Buffer m = filled_buffer(kF32, {n}, 0);
  Buffer v = filled_buffer(kF32, {n}, 0);
  auto want_p = p.values();
  auto want_m = m.values();
  auto want_v = v.values();
  CpuBackend backend(choose_cpu_path(), 2);
  for (args.step = 1; args.step <= 10; ++args.step) {
    const Buffer g = random_buffer(kF32, {n}, {.seed = static_cast<uint64_t>(100 + args.step)});
    adamw(backend, args, g, p, m, v);
    ref::adamw(args, g.values(), want_p, want_m, want_v);
  }
  EXPECT_LE(relative_l2(p.values(), want_p), l2_tolerance(10, kF32));
  EXPECT_LE(relative_l2(m.values(), want_m), l2_tolerance(10 * 3, kF32));
  EXPECT_LE(relative_l2(v.values(), want_v), l2_tolerance(10 * 4, kF32));
}

// A gradient that is zero from the start moves nothing but the decay, and never divides 0 by 0.
TEST(AdamW, ZeroGradient) {
  Buffer p = filled_buffer(kF32, {20}, 2);
  Buffer m = filled_buffer(kF32, {20}, 0);
  Buffer v = filled_buffer(kF32, {20}, 0);
  const Buffer g = filled_buffer(kF32, {20}, 0);
  CpuBackend backend(choose_cpu_path(), 1);
  adamw(backend, {}, g, p, m, v);
  expect_same_bits(p, filled_buffer(kF32, {20}, 2));
}

// Many tensors, small and large: what adamw and pack give one by one; gradients become zero.
TEST(AdamW, AListStepsClearsAndPacks) {
  const AdamWArgs args{.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.5, .step = 3};
  const int64_t sizes[] = {16 * 4, 16 * 40, 16 * 9000};  // even columns: no padding
  for (const CpuPath path : supported_paths()) {
    for (const int threads : {1, 2, 7}) {
      CpuBackend backend(path, threads);
      std::vector<Buffer> got, want, panels, want_panels;
      for (const int64_t n : sizes) {
        for (uint64_t seed = 1; seed <= 4; ++seed) {
          got.push_back(random_buffer(kF32, {n}, {.seed = seed, .scale = 0.1, .mean = 1}));
          want.push_back(got.back());
        }
        panels.emplace_back(DType::kBF16, Shape{n});
        want_panels.emplace_back(DType::kBF16, Shape{n});
      }
      std::vector<PackItem> packs;
      std::vector<AdamWItem> items;
      const auto pack_of = [](const Buffer& p, const Buffer& panel) {
        const int64_t cols = p.size() / 16;
        return PackItem{p.view().reshape({16, cols}),
                        {.data = panel.view().data,
                         .dtype = DType::kBF16,
                         .rows = 16,
                         .cols = cols,
                         .width = 16}};
      };
      for (size_t i = 0; i < 3; ++i) packs.push_back(pack_of(got[4 * i + 1], panels[i]));
      for (size_t i = 0; i < 3; ++i) {
        items.push_back({.g = got[4 * i],
                         .p = got[4 * i + 1],
                         .m = got[4 * i + 2],
                         .v = got[4 * i + 3],
                         .packs = std::span(packs).subspan(i, 1)});
        adamw(backend, args, want[4 * i], want[4 * i + 1], want[4 * i + 2], want[4 * i + 3]);
        const PackItem pack_item = pack_of(want[4 * i + 1], want_panels[i]);
        pack(backend, pack_item.rows, 0, pack_item.panel);
        for (int64_t k = 0; k < sizes[i]; ++k) want[4 * i].set(k, 0);
      }
      adamw_fused(backend, args, items);
      for (size_t i = 0; i < got.size(); ++i) expect_same_bits(got[i], want[i]);
      for (size_t i = 0; i < 3; ++i) expect_same_bits(panels[i], want_panels[i]);
    }
  }
}

}  // namespace
}  // namespace strata::ops
