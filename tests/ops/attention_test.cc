// SPDX-License-Identifier: Apache-2.0
#include "ops/attention.h"

#include <utility>

#include "tests/ops/attention_test.h"

namespace strata::ops::testing {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

// Windows or chunks of less than a block, about a block, more than one, and more than the sequence.
void add_cases_with_windows(bool in_chunks, std::vector<AttentionCase>& all) {
  for (const int64_t window : {1, 2, 63, 64, 65, 100, 1000}) {
    all.push_back({.lengths = {1, 201, 3},
                   .num_heads = 4,
                   .num_kv_heads = 2,
                   .head_dim = 16,
                   .window = window,
                   .in_chunks = in_chunks});
    all.push_back({.lengths = {2, 140},
                   .num_heads = 5,
                   .num_kv_heads = 1,
                   .head_dim = 24,
                   .latent_dim = 16,
                   .window = window,
                   .in_chunks = in_chunks});
  }
  all.push_back({.lengths = {520},
                 .num_heads = 8,
                 .num_kv_heads = 2,
                 .head_dim = 16,
                 .spread = 3,
                 .window = 65,
                 .in_chunks = in_chunks});
}

// With and without a window, heads grouped and not, several sequences.
void add_cases_with_sinks(std::vector<AttentionCase>& all) {
  for (const int64_t window : {0, 1, 40, 64, 128}) {
    all.push_back({.lengths = {1, 201, 3},
                   .num_heads = 8,
                   .num_kv_heads = 2,
                   .head_dim = 64,
                   .window = window,
                   .has_sinks = true});
  }
  all.push_back({.lengths = {300, 0, 2},
                 .num_heads = 3,
                 .num_kv_heads = 3,
                 .head_dim = 20,
                 .spread = 2,
                 .window = 100,
                 .has_sinks = true});
  all.push_back({.lengths = {70, 5},
                 .num_heads = 5,
                 .num_kv_heads = 1,
                 .head_dim = 24,
                 .latent_dim = 16,
                 .has_sinks = true});
}

// Scores about the cap, far below it and far beyond.
void add_cases_with_caps(std::vector<AttentionCase>& all) {
  for (const auto& [spread, cap] : {std::pair{1.0, 1.5}, {1.0, 50.0}, {3.0, 4.0}}) {
    for (const int64_t window : {0, 40, 64}) {
      all.push_back({.lengths = {1, 201, 3},
                     .num_heads = 4,
                     .num_kv_heads = 2,
                     .head_dim = 32,
                     .spread = spread,
                     .window = window,
                     .score_cap = cap});
    }
  }
  all.push_back({.lengths = {300, 0, 2},
                 .num_heads = 3,
                 .num_kv_heads = 3,
                 .head_dim = 20,
                 .spread = 2,
                 .window = 100,
                 .has_sinks = true,
                 .score_cap = 2});
  all.push_back({.lengths = {70, 5},
                 .num_heads = 5,
                 .num_kv_heads = 1,
                 .head_dim = 24,
                 .latent_dim = 16,
                 .score_cap = 1});
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  for (const int64_t head_dim : {1, 6, 16, 64, 80, 128}) {
    all.push_back(
        {.lengths = {1, 65, 2, 63, 64}, .num_heads = 4, .num_kv_heads = 2, .head_dim = head_dim});
  }
  for (const int64_t head_dim : {3, 33, 112}) {
    all.push_back({.lengths = {67}, .num_heads = 3, .num_kv_heads = 3, .head_dim = head_dim});
  }
  for (const int64_t group : {1, 2, 4, 7}) {
    all.push_back(
        {.lengths = {130, 0, 3}, .num_heads = 2 * group, .num_kv_heads = 2, .head_dim = 16});
  }
  all.push_back({.lengths = {300}, .num_heads = 2, .num_kv_heads = 1, .head_dim = 64});
  // Many heads: decode takes several of them at once.
  all.push_back({.lengths = {66, 3}, .num_heads = 9, .num_kv_heads = 9, .head_dim = 16});
  // Latent attention: values are the first columns of the one key head; more rows a token than fit
  // a tile, odd widths, values that end inside a chunk of lanes.
  for (const auto& [heads, dim, latent] :
       {std::tuple{1, 3, 1}, {3, 17, 16}, {5, 24, 16}, {7, 33, 31}, {16, 80, 64}, {130, 36, 20}}) {
    const std::vector<int64_t> many = {1, 5};
    all.push_back({.lengths = heads > 100 ? many : std::vector<int64_t>{1, 66, 3},
                   .num_heads = heads,
                   .num_kv_heads = 1,
                   .head_dim = dim,
                   .latent_dim = latent});
  }
  for (const bool in_chunks : {false, true}) add_cases_with_windows(in_chunks, all);
  add_cases_with_sinks(all);
  add_cases_with_caps(all);
  // Sharp softmax; values so small that products with probabilities leave the normal numbers.
  all.push_back({.lengths = {130}, .num_heads = 2, .num_kv_heads = 1, .head_dim = 16, .spread = 5});
  all.push_back({.lengths = {130},
                 .num_heads = 2,
                 .num_kv_heads = 1,
                 .head_dim = 16,
                 .spread = 3,
                 .v_scale = 1e-36});
  all.push_back(all.back());
  all.back().window = 70;
  return all;
}

// Calls body(case, type, path) with a trace of the three.
template <typename Body>
void for_each_case(Body&& body) {
  for (const AttentionCase& c : cases()) {
    for (const DType type : kTypes) {
      for (const CpuPath path : supported_paths()) {
        SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(type)) + " " +
                     c.name());
        body(c, type, path);
      }
    }
  }
}

bool has_tiny_values(const AttentionCase& c) { return c.v_scale < 1e-30; }

TEST(Attention, MatchesDoubleReference) {
  for (const AttentionCase& c : cases()) {
    if (has_tiny_values(c)) continue;
    for (const DType type : kTypes) {
      const AttentionData data(c, type);
      const ExpectedAttention want = expected_attention(c, data, type);
      const TrainingSegments training(c, data);
      for (const CpuPath path : supported_paths()) {
        SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(type)) + " " +
                     c.name());
        CpuBackend backend(path, 2);
        const Forwarded forward = run_forward(backend, c, data, training.segments());
        expect_close(forward.out, want.out.want, 1.0, want.out.bound);
        expect_close(forward.lse, want.lse.want, 1.0, want.lse.bound);
        const Gradients grads = run_backward(backend, c, data, training.segments(), forward, type);
        expect_close(grads.d_q, want.d_q.want, 1.0, want.d_q.bound);
        expect_close(grads.d_k, want.d_k.want, 1.0, want.d_k.bound);
        expect_close(grads.d_v, want.d_v.want, 1.0, want.d_v.bound);
        expect_close(grads.d_sinks, want.d_sinks.want, 1.0, want.d_sinks.bound);
      }
    }
  }
}

TEST(Attention, Bf16GradientsInF32AreThoseRoundedToBf16) {
  const AttentionCase c{.lengths = {5, 97}, .num_heads = 4, .num_kv_heads = 2, .head_dim = 16};
  const AttentionData data(c, DType::kBF16);
  const TrainingSegments training(c, data);
  for (const CpuPath path : {CpuPath::kReference, CpuPath::kAvx2, CpuPath::kAvx512}) {
    if (!cpu_path_supported(path)) continue;
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 2);
    const Forwarded forward = run_forward(backend, c, data, training.segments());
    const Gradients wide =
        run_backward(backend, c, data, training.segments(), forward, DType::kF32);
    const Gradients narrow =
        run_backward(backend, c, data, training.segments(), forward, DType::kBF16);
    for (int64_t i = 0; i < wide.d_k.size(); ++i) {
      EXPECT_EQ(round_to_bf16(static_cast<float>(wide.d_k.get(i))), narrow.d_k.get(i)) << i;
    }
  }
}

// Rows of a chunk and positions of a page. A chunk of one row is decode.
constexpr std::pair<int64_t, int64_t> kSplits[] = {{1, 1}, {1, 64}, {7, 3}, {64, 1}, {1000, 1000}};

TEST(Attention, DecodeAndChunksHaveTheBitsOfTraining) {
  for_each_case([](const AttentionCase& c, DType type, CpuPath path) {
    const AttentionData data(c, type);
    const TrainingSegments training(c, data);
    CpuBackend backend(path, 2);
    const Forwarded want = run_forward(backend, c, data, training.segments());
    for (const auto& [chunk, page_size] : kSplits) {
      if (path == CpuPath::kReference && chunk != 7) continue;
      SCOPED_TRACE("chunk " + std::to_string(chunk) + " page " + std::to_string(page_size));
      // All chunks of all sequences in one batch: the rows of a batch do not know each other.
      std::vector<std::unique_ptr<Pages>> pages;
      std::vector<AttentionSegment> segments;
      for (const AttentionSegment& whole : training.segments()) {
        for (int64_t row = whole.begin; row < whole.end; row += chunk) {
          const int64_t end = std::min(row + chunk, whole.end);
          pages.push_back(std::make_unique<Pages>(data, whole.begin, end - whole.begin, page_size));
          segments.push_back({row, end, row - whole.begin, pages.back()->view()});
        }
      }
      const Forwarded got = run_forward(backend, c, data, segments);
      expect_same_bits(got.out, want.out);
      expect_same_bits(got.lse, want.lse);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

// A range ends where it likes, and two that touch need not lie side by side.
TEST(Attention, RangesOfAnyLengthHaveTheBitsOfOne) {
  const AttentionCase c{.lengths = {200}, .num_heads = 4, .num_kv_heads = 2, .head_dim = 16};
  constexpr int64_t kEnds[] = {1, 3, 64, 65, 130, 131, 199, 260};
  for (const DType type : kTypes) {
    const AttentionData data(c, type);
    const TrainingSegments training(c, data);
    std::vector<std::unique_ptr<Pages>> memory;
    std::vector<KvRange> ranges;
    for (const int64_t end : kEnds) {
      const int64_t begin = ranges.empty() ? 0 : ranges.back().end;
      memory.push_back(
          std::make_unique<Pages>(data, begin, std::min<int64_t>(end, 200) - begin, end - begin));
      KvRange range = memory.back()->view().ranges[0];
      range.begin = begin;
      range.end = end;
      ranges.push_back(range);
    }
    AttentionSegment segment = training.segments()[0];
    segment.kv.ranges = ranges;
    for (const CpuPath path : supported_paths()) {
      SCOPED_TRACE(cpu_path_name(path));
      CpuBackend backend(path, 2);
      const Forwarded want = run_forward(backend, c, data, training.segments());
      const Forwarded got = run_forward(backend, c, data, {&segment, 1});
      expect_same_bits(got.out, want.out);
      const Gradients want_grads = run_backward(backend, c, data, training.segments(), want, type);
      const Gradients grads = run_backward(backend, c, data, {&segment, 1}, want, type);
      expect_same_bits(grads.d_k, want_grads.d_k);
      expect_same_bits(grads.d_q, want_grads.d_q);
    }
  }
}

TEST(Attention, ThreadsDoNotMoveABit) {
  for_each_case([](const AttentionCase& c, DType type, CpuPath path) {
    const AttentionData data(c, type);
    const TrainingSegments training(c, data);
    CpuBackend one(path, 1);
    const Forwarded forward = run_forward(one, c, data, training.segments());
    const Gradients grads = run_backward(one, c, data, training.segments(), forward, type);
    // One worker takes whole heads; seven are too many for that and split them.
    for (const int num_threads : {2, 7}) {
      CpuBackend many(path, num_threads);
      const Forwarded other = run_forward(many, c, data, training.segments());
      expect_same_bits(other.out, forward.out);
      expect_same_bits(other.lse, forward.lse);
      const Gradients got = run_backward(many, c, data, training.segments(), forward, type);
      expect_same_bits(got.d_q, grads.d_q);
      expect_same_bits(got.d_k, grads.d_k);
      expect_same_bits(got.d_v, grads.d_v);
      expect_same_bits(got.d_sinks, grads.d_sinks);
    }
  });
}

TEST(Attention, SequencesAloneHaveTheBitsOfTheBatch) {
  for_each_case([](const AttentionCase& c, DType type, CpuPath path) {
    const AttentionData data(c, type);
    const TrainingSegments training(c, data);
    CpuBackend backend(path, 2);
    const Forwarded want = run_forward(backend, c, data, training.segments());
    const Gradients want_grads = run_backward(backend, c, data, training.segments(), want, type);
    Forwarded got{Buffer(type, c.out_shape()), Buffer(DType::kF32, {c.num_tokens(), c.num_heads})};
    Gradients grads{Buffer(type, c.q_shape()), Buffer(type, c.k_shape()), Buffer(type, c.v_shape()),
                    filled_buffer(DType::kF32, data.sinks.view().shape, 0)};
    for (const AttentionSegment& segment : training.segments()) {
      const AttentionArgs args = args_of(c, data, {&segment, 1});
      attention(backend, args, got.out, got.lse);
      attention_backward(backend, args, want.out, want.lse, data.d_out, grads.d_q, grads.d_k,
                         grads.d_v, c.has_sinks ? grads.d_sinks.view() : TensorView());
    }
    expect_same_bits(got.out, want.out);
    expect_same_bits(got.lse, want.lse);
    expect_same_bits(grads.d_q, want_grads.d_q);
    expect_same_bits(grads.d_k, want_grads.d_k);
    expect_same_bits(grads.d_v, want_grads.d_v);
    // One chain over the batch's sequences, wherever it is cut.
    expect_same_bits(grads.d_sinks, want_grads.d_sinks);
  });
}

// A sink far below all scores moves nothing but its own gradient; one far above takes everything.
TEST(Attention, SinksOfExtremes) {
  AttentionCase c{.lengths = {150}, .num_heads = 4, .num_kv_heads = 2, .window = 70};
  for (const DType type : kTypes) {
    const AttentionData plain(c, type);
    const TrainingSegments training(c, plain);
    AttentionCase with_sinks = c;
    with_sinks.has_sinks = true;
    AttentionData data(with_sinks, type);
    for (const CpuPath path : supported_paths()) {
      SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(type)));
      CpuBackend backend(path, 2);
      const Forwarded want = run_forward(backend, c, plain, training.segments());
      for (const double none : {-1e30, -std::numeric_limits<double>::infinity()}) {
        for (int64_t n = 0; n < c.num_heads; ++n) data.sinks.set(n, none);
        const Forwarded got = run_forward(backend, with_sinks, data, training.segments());
        expect_same_bits(got.out, want.out);
        expect_same_bits(got.lse, want.lse);
      }
      for (int64_t n = 0; n < c.num_heads; ++n) data.sinks.set(n, 1e4);
      const Forwarded got = run_forward(backend, with_sinks, data, training.segments());
      for (int64_t i = 0; i < got.out.size(); ++i) EXPECT_EQ(got.out.get(i), 0.0) << i;
    }
  }
}

// Scores of which the tanh is 1 or -1 have a gradient of zero, and are the cap to the softmax.
TEST(Attention, ScoresFarBeyondTheCap) {
  const AttentionCase c{.lengths = {70}, .num_heads = 2, .num_kv_heads = 1, .score_cap = 3};
  for (const DType type : kTypes) {
    AttentionData data(c, type);
    for (int64_t i = 0; i < data.q.size(); ++i) data.q.set(i, i % 16 == 0 ? 1e30 : 0.0);
    for (int64_t i = 0; i < data.k.size(); ++i) {
      data.k.set(i, i % 16 == 0 ? (i / 16 % 3 == 0 ? 1e4 : -1e4) : 0.0);
    }
    const TrainingSegments training(c, data);
    for (const CpuPath path : supported_paths()) {
      SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(type)));
      CpuBackend backend(path, 2);
      const Forwarded got = run_forward(backend, c, data, training.segments());
      for (int64_t t = 0; t < 70; ++t) {
        const double at_cap = static_cast<double>(t / 3 + 1);
        const double want = std::log(at_cap * std::exp(3.0) +
                                     (static_cast<double>(t) + 1 - at_cap) * std::exp(-3.0));
        EXPECT_NEAR(got.lse.get(2 * t), want, 1e-5) << t;
      }
      const Gradients grads = run_backward(backend, c, data, training.segments(), got, type);
      for (int64_t i = 0; i < grads.d_q.size(); ++i) EXPECT_EQ(grads.d_q.get(i), 0.0) << i;
      for (int64_t i = 0; i < grads.d_k.size(); ++i) EXPECT_EQ(grads.d_k.get(i), 0.0) << i;
    }
  }
}

// Softmax over one key is the constant 1, and its gradient is not merely small.
TEST(Attention, OneVisibleKeyHasNoGradientOfScores) {
  for (const DType type : kTypes) {
    const AttentionCase c{.lengths = {1, 1, 3}, .num_heads = 4, .num_kv_heads = 2, .head_dim = 80};
    const AttentionData data(c, type);
    const TrainingSegments training(c, data);
    for (const CpuPath path : supported_paths()) {
      SCOPED_TRACE(cpu_path_name(path));
      CpuBackend backend(path, 2);
      const Forwarded forward = run_forward(backend, c, data, training.segments());
      const Gradients grads = run_backward(backend, c, data, training.segments(), forward, type);
      for (int64_t i = 0; i < 3 * 4 * 80; ++i) EXPECT_EQ(grads.d_q.get(i), 0.0) << i;
      for (int64_t i = 0; i < 2 * 2 * 80; ++i) EXPECT_EQ(grads.d_k.get(i), 0.0) << i;
    }
  }
}

TEST(Attention, NoLseWantedSameOut) {
  const AttentionCase c{.lengths = {70}, .num_heads = 2, .num_kv_heads = 1, .head_dim = 16};
  const AttentionData data(c, DType::kBF16);
  const TrainingSegments training(c, data);
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    const Forwarded want = run_forward(backend, c, data, training.segments());
    const Buffer out(DType::kBF16, c.q_shape());
    attention(backend, {data.q.view(), training.segments(), 1, c.scale()}, out, {});
    expect_same_bits(out, want.out);
  }
}

// A NaN of one sequence stays in it, and a NaN key does not reach earlier queries' scores.
TEST(Attention, NanStaysInItsSequence) {
  for (const DType type : kTypes) {
    const AttentionCase c{
        .lengths = {70, 5, 70}, .num_heads = 2, .num_kv_heads = 1, .head_dim = 16};
    AttentionData data(c, type);
    const TrainingSegments training(c, data);
    for (const CpuPath path : supported_paths()) {
      SCOPED_TRACE(cpu_path_name(path));
      CpuBackend backend(path, 2);
      const Forwarded clean = run_forward(backend, c, data, training.segments());
      const double kept = data.k.get(72 * 16);
      data.k.set(72 * 16, std::nan(""));
      const Forwarded got = run_forward(backend, c, data, training.segments());
      data.k.set(72 * 16, kept);
      for (int64_t t = 0; t < c.num_tokens(); ++t) {
        const bool poisoned = t >= 72 && t < 75;
        for (int64_t i = t * 32; i < (t + 1) * 32; ++i) {
          if (poisoned) {
            EXPECT_TRUE(std::isnan(got.out.get(i))) << t;
          } else {
            EXPECT_EQ(got.out.get(i), clean.out.get(i)) << t;
          }
        }
      }
    }
  }
}

// Extreme scores: finite where the formula is.
TEST(Attention, ExtremeScores) {
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 1);
    const AttentionCase c{.lengths = {130}, .num_heads = 1, .num_kv_heads = 1, .head_dim = 2};
    AttentionData data(c, DType::kF32);
    // Key 0 has score -3e38 / sqrt(2), key 100 has +3e38 / sqrt(2), all others 0.
    for (int64_t t = 0; t < 130; ++t) {
      data.q.set(2 * t, 1.0);
      data.q.set(2 * t + 1, 0.0);
      data.k.set(2 * t, t == 0 ? -3e38 : t == 100 ? 3e38 : 0.0);
    }
    const TrainingSegments training(c, data);
    const Forwarded got = run_forward(backend, c, data, training.segments());
    for (int64_t h = 0; h < 2; ++h) {
      EXPECT_EQ(got.out.get(h), data.v.get(h));
      EXPECT_EQ(got.out.get(2 + h), data.v.get(2 + h));
      EXPECT_EQ(got.out.get(2 * 129 + h), data.v.get(2 * 100 + h));
      EXPECT_TRUE(std::isfinite(got.out.get(2 * 99 + h)));
    }
  }
}

// Two keys whose scores differ by x, so that the second probability is e^-x / (1 + e^-x): shows the
// error of the exponential, which hides behind that of the scores elsewhere. With u = 2^-24: 4 u of
// the function, 2 x u of its argument (log2(e) and the product with it), 4 u of sum and quotient.
TEST(Attention, ExponentialIsAccurate) {
  constexpr int64_t kNum = 400;
  AttentionCase c{.lengths = std::vector<int64_t>(kNum, 2), .head_dim = 1};
  AttentionData data(c, DType::kF32);
  for (int64_t i = 0; i < kNum; ++i) {
    for (const int64_t row : {2 * i, 2 * i + 1}) {
      data.q.set(row, 1.0);
      data.k.set(row, row % 2 == 0 ? 0.0 : -static_cast<double>(i) / 16);
      data.v.set(row, row % 2 == 0 ? 0.0 : 1.0);
    }
  }
  const TrainingSegments training(c, data);
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 1);
    const Forwarded got = run_forward(backend, c, data, training.segments());
    for (int64_t i = 0; i < kNum; ++i) {
      const double x = static_cast<double>(i) / 16;
      const double want = std::exp(-x) / (1 + std::exp(-x));
      EXPECT_NEAR(got.out.get(2 * i + 1) / want, 1.0, (8 + 2 * x) * 0x1.0p-24) << x;
    }
  }
}

TEST(Attention, EmptyBatch) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    const AttentionCase c{.lengths = {0}, .num_heads = 2, .num_kv_heads = 1, .head_dim = 16};
    const AttentionData data(c, DType::kF32);
    const TrainingSegments training(c, data);
    const Forwarded forward = run_forward(backend, c, data, training.segments());
    EXPECT_EQ(forward.out.view().rows(), 0);
    run_backward(backend, c, data, training.segments(), forward, DType::kF32);
    EXPECT_EQ(run_forward(backend, c, data, {}).lse.view().rows(), 0);
  }
}

TEST(Attention, WarmCallsTakeNoMoreScratch) {
  const AttentionCase c{.lengths = {300, 40}, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  const AttentionData data(c, DType::kBF16);
  const TrainingSegments training(c, data);
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    const Forwarded forward = run_forward(backend, c, data, training.segments());
    run_backward(backend, c, data, training.segments(), forward, DType::kBF16);
    const int64_t grown = backend.scratch().grown();
    run_forward(backend, c, data, training.segments());
    run_backward(backend, c, data, training.segments(), forward, DType::kBF16);
    EXPECT_EQ(backend.scratch().grown(), grown);
  }
}

}  // namespace
}  // namespace strata::ops::testing
