// SPDX-License-Identifier: Apache-2.0
// Grouped products have the bits of one product a group, empty groups are never read, and rows
// outside every group stay.
#include "ops/gemm_groups.h"

#include "tests/ops/gemm_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr int64_t kRows = 61, kOut = 70, kIn = 45, kRank = 3;

struct Groups {
  std::vector<Weight> weights;
  Weight a, b;
  Buffer h;
  std::vector<GemmGroup> list;
  std::vector<LowRankSegment> runs;

  // 0 to 20, none, 20 to 21, a gap, 30 to 61; the last has a low-rank term in its middle.
  Groups(Backend& backend, DType dtype, bool forward)
      : a(backend, dtype, kRank, kIn, 16, 8),
        b(backend, dtype, kOut, kRank, panel_width(backend), 9),
        h(random_buffer(dtype, {kRows, kRank}, {.seed = 10})) {
    weights.reserve(3);
    for (uint64_t e = 0; e < 3; ++e) {
      weights.emplace_back(backend, dtype, kOut, kIn, panel_width(backend), e);
    }
    PanelView absent = weights[0].panel;
    absent.data = nullptr;
    list = {{0, 20, weights[0].panel},
            {20, 20, absent},
            {20, 21, weights[1].panel},
            {30, 30, absent},
            {30, 61, weights[2].panel}};
    runs = {{.begin = 35, .end = 50, .x = h.view(), .w = forward ? b.panel : a.panel}};
  }
};

class GemmGroups : public ::testing::TestWithParam<DType> {};

TEST_P(GemmGroups, AreOneProductEach) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 3);
    for (const bool forward : {true, false}) {
      Groups groups(backend, GetParam(), forward);
      const int64_t summed = forward ? kIn : kOut, made = forward ? kOut : kIn;
      const Buffer x = random_buffer(GetParam(), {kRows, summed}, {.seed = 5});
      const auto product = forward ? &gemm : nullptr;
      Buffer whole(DType::kF32, {kRows, made}), single(DType::kF32, {kRows, made});
      for (Buffer* y : {&whole, &single}) {
        std::fill_n(y->view().f32(), kRows * made, 7.0f);
      }
      const GemmGroupsArgs args = {.x = x.view(), .groups = groups.list, .runs = groups.runs};
      if (forward) {
        gemm_groups(backend, args, whole.view());
      } else {
        gemm_groups_dx(backend, args, whole.view());
      }
      for (const GemmGroup& group : groups.list) {
        // Row by row: a row's bits depend on no other.
        for (int64_t row = group.begin; row < group.end; ++row) {
          std::vector<LowRankSegment> own;
          if (row >= 35 && row < 50) {
            own.push_back({0, 1, groups.h.view().slice_rows(row, row + 1), groups.runs[0].w});
          }
          const GemmArgs one = {.x = x.view().slice_rows(row, row + 1), .w = group.w, .runs = own};
          const TensorView y = single.view().slice_rows(row, row + 1);
          if (product != nullptr) {
            product(backend, one, y);
          } else {
            gemm_dx(backend, one, y);
          }
        }
      }
      EXPECT_EQ(std::memcmp(whole.view().data, single.view().data,
                            static_cast<size_t>(whole.view().num_bytes())),
                0)
          << cpu_path_name(path) << (forward ? " forward" : " dx");
      for (int64_t i = 21 * made; i < 30 * made; ++i) ASSERT_EQ(whole.view().f32()[i], 7.0f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GemmGroups, ::testing::ValuesIn(product_dtypes()));

}  // namespace
}  // namespace strata::ops
