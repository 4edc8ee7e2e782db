// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.h"

#include "ops/ref/rope.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr float kEps = 1e-6f;
constexpr int64_t kPositions = 50;

struct Case {
  int64_t tokens;
  int64_t heads;
  int64_t dim;
  bool norm;
  DType type = kF32;
  double scale = 2;
  bool interleaved = false;
  float offset = 0;
  int64_t rotary_dim = 0;

  [[nodiscard]] int64_t pairs() const { return (rotary_dim == 0 ? dim : rotary_dim) / 2; }
};

const Case kCases[] = {
    {0, 2, 64, true},
    {1, 1, 2, true},
    {1, 1, 2, false},
    {3, 2, 30, true},
    {3, 2, 32, false},
    {2, 3, 34, true},
    {5, 16, 128, true},
    {9, 16, 128, true},
    {40, 8, 64, false},
    {5, 16, 128, true, kBF16},
    {40, 8, 64, true, kBF16},
    {3, 1, 254, false, kBF16},
    {3, 2, 64, true, kF32, 1e-3},
    {1, 1, 2, false, kF32, 2, true},
    {3, 2, 30, false, kF32, 2, true},
    {9, 1, 64, false, kF32, 2, true},
    {40, 16, 64, false, kBF16, 2, true},
    {2, 3, 1024, false, kBF16, 2, true},
    {3, 2, 30, false, kF32, 2, true, 0, 12},
    {9, 4, 64, false, kBF16, 2, true, 0, 32},
    {3, 2, 30, true, kF32, 2, false, 1},
    {9, 4, 128, true, kBF16, 2, false, 1},
    {3, 2, 31, true, kF32, 2, false, 0, 8},
    {9, 4, 256, true, kBF16, 2, false, 1, 64},
    {40, 4, 80, false, kBF16, 2, false, 0, 50},
    {3, 2, 17, false, kF32, 2, false, 0, 16},
    {5, 2, 33, true, kF32, 2, false, 1, 2},
};

std::string name_of(const Case& c) {
  return "tokens " + std::to_string(c.tokens) + ", heads " + std::to_string(c.heads) + ", dim " +
         std::to_string(c.dim) + (c.norm ? ", norm, " : ", no norm, ") +
         (c.interleaved ? "interleaved, " : "") + "offset " + std::to_string(c.offset) + ", " +
         std::string(dtype_name(c.type));
}

// What an op and its reference read.
struct Inputs {
  explicit Inputs(const Case& c)
      : x(random_buffer(c.type, {c.tokens, c.heads, c.dim}, {.seed = 1, .scale = c.scale})),
        weight(random_buffer(kF32, {c.dim}, {.seed = 2, .scale = 0.3, .mean = 1.0 - c.offset})),
        cos(kF32, {kPositions, c.pairs()}),
        sin(kF32, {kPositions, c.pairs()}),
        norm(c.norm),
        interleaved(c.interleaved),
        offset(c.offset),
        rotary_dim(c.rotary_dim) {
    for (int64_t i = 0; i < cos.size(); ++i) {
      const double angle = static_cast<double>(i / c.pairs()) / (1.0 + 0.3 * (i % c.pairs()));
      cos.set(i, std::cos(angle));
      sin.set(i, std::sin(angle));
    }
    for (int64_t t = 0; t < c.tokens; ++t) {
      positions.push_back(static_cast<int32_t>((t * 17 + 3) % kPositions));
    }
    oracle = {.num_heads = c.heads,
              .head_dim = c.dim,
              .rotary_dim = 2 * c.pairs(),
              .norm = c.norm,
              .interleaved = c.interleaved,
              .eps = kEps,
              .weight_offset = c.offset,
              .positions = positions,
              .cos = cos.values(),
              .sin = sin.values()};
  }
  [[nodiscard]] HeadNormRopeArgs args() const {
    return {.x = x,
            .weight = norm ? weight.view() : TensorView(),
            .eps = kEps,
            .weight_offset = offset,
            .positions = positions,
            .cos = cos,
            .sin = sin,
            .interleaved = interleaved,
            .rotary_dim = rotary_dim};
  }

  Buffer x;
  Buffer weight;
  Buffer cos;
  Buffer sin;
  bool norm;
  bool interleaved;
  float offset;
  int64_t rotary_dim;
  std::vector<int32_t> positions;
  ref::HeadNormRope oracle;
};

int64_t terms(const Case& c) { return c.dim / 16 + 15; }

TEST(Rope, ForwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Inputs in(c);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(c.type, {c.tokens, c.heads, c.dim})};
      head_norm_rope(backend, in.args(), out[0]);
      return out;
    });
    const auto want = ref::head_norm_rope(in.oracle, in.x.values(), in.weight.values());
    expect_close_l2(outputs[0], want, terms(c));
  }
}

TEST(Rope, BackwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Inputs in(c);
    const Buffer d_y = random_buffer(c.type, {c.tokens, c.heads, c.dim}, {.seed = 3});
    const Buffer start = random_buffer(kF32, {c.dim}, {.seed = 4});
    for (const DType d_x_type : {kF32, kBF16}) {
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {Buffer(d_x_type, {c.tokens, c.heads, c.dim}), start};
        head_norm_rope_backward(backend, in.args(), d_y, out[0],
                                c.norm ? out[1].view() : TensorView());
        return out;
      });
      std::vector<double> d_x(static_cast<size_t>(d_y.size()));
      std::vector<double> d_weight = start.values();
      ref::head_norm_rope_backward(in.oracle, in.x.values(), in.weight.values(), d_y.values(), d_x,
                                   d_weight);
      expect_close_l2(outputs[0], d_x, terms(c));
      expect_close_l2(outputs[1], d_weight, c.tokens * c.heads + terms(c));
    }
  }
}

TEST(Rope, ReferenceBackwardMatchesComplexStep) {
  for (const Case& c : {Case{2, 2, 6, true},
                        {2, 2, 6, false},
                        {2, 2, 6, false, kF32, 2, true},
                        {2, 2, 6, true, kF32, 2, false, 1},
                        {2, 2, 7, true, kF32, 2, false, 1, 4},
                        {2, 2, 7, false, kF32, 2, false, 0, 2}}) {
    const Inputs in(c);
    const auto x = in.x.values();
    const auto w = in.weight.values();
    const auto d_y = random_buffer(kF32, {c.tokens, c.heads, c.dim}, {.seed = 3}).values();
    std::vector<double> d_x(x.size());
    std::vector<double> d_w(w.size());
    ref::head_norm_rope_backward(in.oracle, x, w, d_y, d_x, d_w);
    using Complex = std::vector<std::complex<double>>;
    const auto by_x = complex_step(
        [&](const Complex& point) { return ref::head_norm_rope(in.oracle, point, to_complex(w)); },
        x, d_y);
    const auto by_w = complex_step(
        [&](const Complex& point) { return ref::head_norm_rope(in.oracle, to_complex(x), point); },
        w, d_y);
    EXPECT_LE(relative_l2(d_x, by_x), 1e-13);
    EXPECT_LE(relative_l2(d_w, by_w), 1e-13);
  }
}

TEST(Rope, TokensAloneEqualTokensTogetherAndInPlace) {
  for (const Case& c : {Case{20, 9, 128, true},
                        {20, 9, 128, true, kBF16},
                        {20, 9, 128, false, kF32, 2, true},
                        {20, 9, 128, false, kBF16, 2, true},
                        {20, 9, 128, true, kF32, 2, false, 1, 32},
                        {20, 9, 128, true, kBF16, 2, false, 1, 32},
                        {20, 9, 128, false, kBF16, 2, false, 0, 32}}) {
    const DType type = c.type;
    const Inputs in(c);
    const Buffer d_y = random_buffer(type, {c.tokens, c.heads, c.dim}, {.seed = 3});
    for (const CpuPath path : supported_paths()) {
      SCOPED_TRACE(cpu_path_name(path));
      CpuBackend backend(path, 7);
      Buffer together(type, {c.tokens, c.heads, c.dim});
      Buffer alone(type, {c.tokens, c.heads, c.dim});
      head_norm_rope(backend, in.args(), together);
      for (int64_t t = 0; t < c.tokens; ++t) {
        HeadNormRopeArgs one = in.args();
        one.x = one.x.at(t).reshape({1, c.heads, c.dim});
        one.positions = one.positions.subspan(static_cast<size_t>(t), 1);
        head_norm_rope(backend, one, alone.view().at(t).reshape({1, c.heads, c.dim}));
      }
      expect_same_bits(alone, together);
      Buffer over = in.x;
      HeadNormRopeArgs same = in.args();
      same.x = over;
      head_norm_rope(backend, same, over);
      expect_same_bits(over, together);

      Buffer d_x(type, {c.tokens, c.heads, c.dim});
      Buffer d_over = d_y;
      Buffer d_w = filled_buffer(kF32, {c.dim}, 0);
      Buffer d_w_over = filled_buffer(kF32, {c.dim}, 0);
      head_norm_rope_backward(backend, in.args(), d_y, d_x, c.norm ? d_w.view() : TensorView());
      head_norm_rope_backward(backend, in.args(), d_over, d_over,
                              c.norm ? d_w_over.view() : TensorView());
      expect_same_bits(d_over, d_x);
      expect_same_bits(d_w_over, d_w);
    }
  }
}

// The columns that are not turned are those of the norm alone, and a rotary width of H is none.
TEST(Rope, ColumnsBeyondTheRotaryWidthPassThrough) {
  const Case c{.tokens = 5, .heads = 3, .dim = 64, .norm = true, .offset = 1, .rotary_dim = 16};
  const Inputs in(c);
  const Case whole{.tokens = 5, .heads = 3, .dim = 64, .norm = true, .offset = 1};
  const Inputs all(whole);
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 2);
    Buffer got(kF32, {c.tokens, c.heads, c.dim}), normed(kF32, {c.tokens, c.heads, c.dim});
    head_norm_rope(backend, in.args(), got);
    HeadNormRopeArgs unturned = in.args();
    unturned.rotary_dim = 2;
    const Buffer ones = filled_buffer(kF32, {kPositions, 1}, 1);
    const Buffer zeros = filled_buffer(kF32, {kPositions, 1}, 0);
    unturned.cos = ones;
    unturned.sin = zeros;
    head_norm_rope(backend, unturned, normed);
    for (int64_t i = 0; i < got.size(); ++i) {
      if (i % c.dim < c.rotary_dim) continue;
      EXPECT_EQ(got.get(i), normed.get(i)) << i;
    }
    Buffer want(kF32, {c.tokens, c.heads, c.dim});
    head_norm_rope(backend, all.args(), want);
    HeadNormRopeArgs said = all.args();
    said.rotary_dim = c.dim;
    head_norm_rope(backend, said, got);
    expect_same_bits(got, want);
  }
}

// As latent attention calls it: the last columns of each head of wider tensors.
TEST(Rope, ColumnsOfWiderRows) {
  const Case c{.tokens = 5, .heads = 3, .dim = 20, .norm = false, .interleaved = true};
  const Inputs in(c);
  const auto part_of = [&](const Buffer& wide) {
    TensorView part = wide.view();
    part.data = static_cast<float*>(part.data) + wide.view().cols() - c.dim;
    part.shape = {c.tokens, c.heads, c.dim};
    return part;
  };
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 2);
    Buffer want(kF32, {c.tokens, c.heads, c.dim});
    head_norm_rope(backend, in.args(), want);
    Buffer from = filled_buffer(kF32, {c.tokens, c.heads, 27}, 5);
    Buffer to = filled_buffer(kF32, {c.tokens, c.heads, 33}, 7);
    for (int64_t i = 0; i < in.x.size(); ++i) from.set(i / 20 * 27 + 7 + i % 20, in.x.get(i));
    HeadNormRopeArgs args = in.args();
    args.x = part_of(from);
    head_norm_rope(backend, args, part_of(to));
    for (int64_t i = 0; i < to.size(); ++i) {
      const int64_t col = i % 33;
      EXPECT_EQ(to.get(i), col < 13 ? 7.0 : want.get(i / 33 * 20 + col - 13)) << i;
    }
  }
}

// As gated attention calls it: the first half of each head of [T, N, 2 H], normed, partly turned.
TEST(Rope, QueriesBesideTheirGates) {
  const Case c{.tokens = 9, .heads = 3, .dim = 20, .norm = true, .offset = 1, .rotary_dim = 8};
  const Inputs in(c);
  const Buffer d_y = random_buffer(kF32, {c.tokens, c.heads, c.dim}, {.seed = 3});
  const auto queries_of = [&](const Buffer& projection) {
    TensorView part = projection.view().slice_cols(0, c.dim);
    part.shape = {c.tokens, c.heads, c.dim};
    return part;
  };
  Buffer projection = filled_buffer(kF32, {c.tokens, c.heads, 2 * c.dim}, 5);
  for (int64_t i = 0; i < in.x.size(); ++i) {
    projection.set(i / c.dim * 2 * c.dim + i % c.dim, in.x.get(i));
  }
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 2);
    HeadNormRopeArgs args = in.args();
    args.x = queries_of(projection);
    Buffer y(kF32, in.x.view().shape), want(kF32, in.x.view().shape);
    head_norm_rope(backend, args, y);
    head_norm_rope(backend, in.args(), want);
    expect_same_bits(y, want);
    Buffer d_projection = filled_buffer(kF32, projection.view().shape, 7);
    Buffer d_x(kF32, in.x.view().shape);
    Buffer d_weight = filled_buffer(kF32, {c.dim}, 0), d_weight_want = d_weight;
    head_norm_rope_backward(backend, args, d_y, queries_of(d_projection), d_weight);
    head_norm_rope_backward(backend, in.args(), d_y, d_x, d_weight_want);
    expect_same_bits(d_weight, d_weight_want);
    for (int64_t i = 0; i < d_projection.size(); ++i) {
      const int64_t row = i / (2 * c.dim), col = i % (2 * c.dim);
      EXPECT_EQ(d_projection.get(i), col < c.dim ? d_x.get(row * c.dim + col) : 7.0) << i;
    }
  }
}

TEST(RopeDeathTest, PositionBeyondTheTable) {
  const Case c{.tokens = 1, .heads = 1, .dim = 4, .norm = false};
  Inputs in(c);
  in.positions[0] = kPositions;
  Buffer y(kF32, {1, 1, 4});
  CpuBackend backend(CpuPath::kReference, 1);
  EXPECT_DEATH(head_norm_rope(backend, in.args(), y), "position");
}

}  // namespace
}  // namespace strata::ops
