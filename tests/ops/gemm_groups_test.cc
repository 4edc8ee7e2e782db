// SPDX-License-Identifier: Apache-2.0
// Grouped products and gradients have the bits of one product a group, wherever its rows end; the
// weights of empty groups are never read; rows of no item stay.
#include "ops/gemm_groups.h"

#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "tests/ops/gemm_test.h"
#include "tests/ops/indices.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr int64_t kGroups = 5, kOut = 70, kIn = 45, kRank = 3;
// Four sequences of 31 tokens; every token goes to two groups, none to group 1.
const std::vector<int64_t> kEnds = {9, 10, 22, 31};

// One matrix of each group, one behind the other; group 1's is never packed: all NaN.
struct Stack {
  std::vector<Weight> weights;
  Tensor memory;
  PanelStack stack;

  Stack(Backend& backend, DType dtype, int64_t rows, int64_t cols, int64_t width, uint64_t seed) {
    weights.reserve(kGroups);
    for (int64_t g = 0; g < kGroups; ++g) {
      weights.emplace_back(backend, dtype, rows, cols, width, seed + static_cast<uint64_t>(g));
    }
    stack = {weights[0].panel, Arena::aligned(weights[0].panel.num_bytes())};
    memory = Tensor(backend.allocator(), DType::kF32, {kGroups * stack.bytes / 4});
    stack.first.data = memory.view().data;
    for (int64_t g = 0; g < kGroups; ++g) {
      const auto bytes = static_cast<size_t>(stack.first.num_bytes());
      std::memset(stack.at(g).data, 0xff, bytes);
      if (g != 1) std::memcpy(stack.at(g).data, weights[static_cast<size_t>(g)].panel.data, bytes);
    }
  }
};

struct Division {
  std::vector<int64_t> group_ends, part_ends;
  std::vector<int32_t> tokens, part_sequences;
  GroupedRows rows;

  Division() {
    std::vector<std::vector<int32_t>> of_group(kGroups);
    for (int32_t t = 0; t < kEnds.back(); ++t) {
      of_group[t % 3 == 0 ? 0 : 4].push_back(t);
      of_group[t == 9 ? 2 : 3].push_back(t);
    }
    for (const std::vector<int32_t>& list : of_group) {
      tokens.insert(tokens.end(), list.begin(), list.end());
      group_ends.push_back(std::ssize(tokens));
    }
    const int64_t most = most_parts(std::ssize(tokens), kGroups, std::ssize(kEnds));
    part_ends.assign(static_cast<size_t>(most), -1);
    part_sequences.assign(static_cast<size_t>(most), -1);
    rows = {.num_rows = std::ssize(tokens),
            .group_ends = indices(group_ends),
            .part_ends = indices(part_ends),
            .part_sequences = indices(part_sequences),
            .sequence_ends = kEnds};
  }
  [[nodiscard]] int64_t group_of(int64_t row) const {
    int64_t group = 0;
    while (group_ends[static_cast<size_t>(group)] <= row) ++group;
    return group;
  }
  // body(row, group), of the rows of sequences [first, end).
  template <typename Body>
  void for_rows(int64_t first, int64_t end, Body body) const {
    const int64_t from = first == 0 ? 0 : kEnds[static_cast<size_t>(first - 1)];
    for (int64_t row = 0; row < rows.num_rows; ++row) {
      const int32_t token = tokens[static_cast<size_t>(row)];
      if (token >= from && token < kEnds[static_cast<size_t>(end - 1)]) body(row, group_of(row));
    }
  }
};

bool same_bits(TensorView a, TensorView b) {
  return std::memcmp(a.data, b.data, static_cast<size_t>(a.num_bytes())) == 0;
}
void fill_sevens(const Buffer& x) {
  std::fill_n(x.view().f32(), x.view().shape.num_elements(), 7.0f);
}

class GemmGroups : public ::testing::TestWithParam<DType> {
 protected:
  Division division_;

  // With low-rank terms for the middle sequences, against one product a row.
  void compare_products(CpuBackend& backend, bool forward) {
    const DType dtype = GetParam();
    const int64_t n = division_.rows.num_rows;
    const Stack w(backend, dtype, kOut, kIn, panel_width(backend), 1);
    const Stack low(backend, dtype, forward ? kOut : kRank, forward ? kRank : kIn,
                    forward ? panel_width(backend) : 16, 20);
    const Buffer h = random_buffer(dtype, {n, kRank}, {.seed = 10});
    const Buffer x = random_buffer(dtype, {n, forward ? kIn : kOut}, {.seed = 5});
    const std::vector<GroupedLowRank> runs = {{1, 2, h.view(), low.stack},
                                              {2, 3, h.view(), low.stack}};
    const Buffer biases = random_buffer(DType::kF32, {kGroups, kOut}, {.seed = 6});
    GroupedArgs args = {x.view(), w.stack, division_.rows, runs};
    if (forward) {
      args.bias = {TensorView(biases.view().data, DType::kF32, {kOut}), kOut * 4};
    }
    Buffer whole(DType::kF32, {n, forward ? kOut : kIn}), single(DType::kF32, whole.view().shape);
    fill_sevens(whole);
    fill_sevens(single);
    forward ? gemm_groups(backend, args, whole.view())
            : gemm_groups_dx(backend, args, whole.view(), true);
    std::vector<bool> has_term(static_cast<size_t>(n));
    division_.for_rows(1, 3, [&](int64_t r, int64_t) { has_term[static_cast<size_t>(r)] = true; });
    division_.for_rows(0, 4, [&](int64_t row, int64_t group) {
      std::vector<LowRankSegment> own;
      if (has_term[static_cast<size_t>(row)]) {
        own.push_back({0, 1, h.view().slice_rows(row, row + 1), low.stack.at(group)});
      }
      const GemmArgs one = {.x = x.view().slice_rows(row, row + 1),
                            .w = w.stack.at(group),
                            .runs = own,
                            .bias = forward ? args.bias.at(group) : TensorView()};
      const TensorView y = single.view().slice_rows(row, row + 1);
      forward ? gemm(backend, one, y) : gemm_dx(backend, one, y, true);
    });
    EXPECT_TRUE(same_bits(whole.view(), single.view()))
        << cpu_path_name(backend.path()) << (forward ? " forward" : " dx");
  }
};

TEST_P(GemmGroups, PartsAreRowsOfOneGroupAndOneSequence) {
  CpuBackend backend(CpuPath::kReference, 1);
  split_groups_by_sequence(backend, indices(division_.tokens), division_.rows);
  int64_t begin = 0;
  size_t p = 0;
  for (; begin < division_.rows.num_rows; begin = division_.part_ends[p++]) {
    const int32_t s = division_.part_sequences[p];
    ASSERT_GT(division_.part_ends[p], begin);
    for (int64_t row = begin; row < division_.part_ends[p]; ++row) {
      EXPECT_EQ(division_.group_of(row), division_.group_of(begin));
      const int32_t token = division_.tokens[static_cast<size_t>(row)];
      EXPECT_LT(token, kEnds[static_cast<size_t>(s)]);
      EXPECT_GE(token, s == 0 ? 0 : kEnds[static_cast<size_t>(s - 1)]);
    }
  }
  EXPECT_EQ(p, 4u + 1u + 3u + 3u) << "of groups 0, 2, 3 and 4";
}

TEST_P(GemmGroups, AreOneProductEach) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 3);
    split_groups_by_sequence(backend, indices(division_.tokens), division_.rows);
    for (const bool forward : {true, false}) compare_products(backend, forward);
  }
}

TEST_P(GemmGroups, RunsAreOneProductEachAndLeaveOtherRowsAlone) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 3);
    split_groups_by_sequence(backend, indices(division_.tokens), division_.rows);
    const int64_t n = division_.rows.num_rows;
    const Stack a(backend, GetParam(), kRank, kIn, 16, 1);
    const Stack b(backend, GetParam(), kOut, kRank, panel_width(backend), 9);
    const Buffer x = random_buffer(GetParam(), {n, kIn}, {.seed = 5});
    const Buffer dy = random_buffer(GetParam(), {n, kOut}, {.seed = 6});
    Buffer h(DType::kF32, {n, kRank + 2}), h_single(DType::kF32, {n, kRank + 2});
    Buffer d_h(DType::kF32, {n, kRank}), d_single(DType::kF32, {n, kRank});
    for (const Buffer* buffer : {&h, &h_single, &d_h, &d_single}) fill_sevens(*buffer);
    const std::vector<GroupedProduct> down = {{0, 1, a.stack, 0.5f}, {2, 4, a.stack, 2.0f}};
    const std::vector<GroupedProduct> up = {{0, 1, b.stack}, {2, 4, b.stack}};
    gemm_group_runs(backend, division_.rows, x.view(), down, h.view());
    gemm_group_runs_dx(backend, division_.rows, dy.view(), up, d_h.view(), true);
    const std::vector<GroupedProduct> scales = {{0, 1, b.stack, 0.5f}, {2, 4, b.stack, 2.0f}};
    scale_group_runs(backend, division_.rows, d_h.view(), scales, d_h.view());
    for (const GroupedProduct& item : down) {
      division_.for_rows(item.first, item.end, [&](int64_t row, int64_t group) {
        const auto of = [&](const Buffer& m) { return m.view().slice_rows(row, row + 1); };
        const GemmArgs one = {.x = of(x), .w = a.stack.at(group), .scale = item.scale};
        gemm(backend, one, of(h_single).slice_cols(0, kRank));
        gemm_dx(backend, {.x = of(dy), .w = b.stack.at(group)}, of(d_single), true);
        scale(backend, of(d_single), item.scale, of(d_single));
      });
    }
    EXPECT_TRUE(same_bits(h.view(), h_single.view())) << cpu_path_name(path);
    EXPECT_TRUE(same_bits(d_h.view(), d_single.view())) << cpu_path_name(path);
  }
}

// bf16's pairs straddle no two sequences: a gradient of whole groups has the bits of one product a
// sequence, in their order.
TEST_P(GemmGroups, GradientsAreOneChainAGroup) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 3);
    split_groups_by_sequence(backend, indices(division_.tokens), division_.rows);
    const int64_t n = division_.rows.num_rows;
    const Buffer x = random_buffer(GetParam(), {n, kIn}, {.seed = 5});
    const Buffer dy = random_buffer(GetParam(), {n, kOut}, {.seed = 6});
    for (const auto& [first, end] : {std::pair(0, 4), std::pair(1, 3)}) {
      Buffer whole(DType::kF32, {kGroups * kOut, kIn}), single(DType::kF32, whole.view().shape);
      fill_sevens(whole);
      fill_sevens(single);
      const auto of_group = [&](const Buffer& dw, int64_t g) {
        return dw.view().slice_rows(g * kOut, (g + 1) * kOut);
      };
      const GroupedGradient gradient = {
          first, end, dy.view(), x.view(), {of_group(whole, 0), kOut * kIn * 4}};
      gemm_dw_groups(backend, division_.rows, {&gradient, 1});
      for (int64_t s = first; s < end; ++s) {
        std::vector<std::vector<int64_t>> rows(kGroups);
        division_.for_rows(s, s + 1, [&](int64_t row, int64_t group) {
          rows[static_cast<size_t>(group)].push_back(row);
        });
        for (int64_t g = 0; g < kGroups; ++g) {
          const std::vector<int64_t>& list = rows[static_cast<size_t>(g)];
          const int64_t count = std::ssize(list);
          if (count == 0) continue;
          gemm_dw(backend, take_rows(dy, list).view(), take_rows(x, list).view(), {&count, 1},
                  of_group(single, g));
        }
      }
      EXPECT_TRUE(same_bits(whole.view(), single.view())) << cpu_path_name(path) << first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GemmGroups, ::testing::ValuesIn(product_dtypes()));

}  // namespace
}  // namespace strata::ops
