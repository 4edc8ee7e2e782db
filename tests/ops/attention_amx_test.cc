// SPDX-License-Identifier: Apache-2.0
// Attention of the path amx: its products against the oracle of its groups, bit for bit; and its
// engines against each other over shapes, chunks, windows, threads and denormals.
#include "ops/ref/amx_product.h"
#include "tests/ops/amx_engines.h"
#include "tests/ops/attention_test.h"

namespace strata::ops::testing {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  for (const int64_t head_dim : {1, 7, 16, 32, 33, 64, 80, 128}) {
    all.push_back(
        {.lengths = {1, 65, 2, 63}, .num_heads = 4, .num_kv_heads = 2, .head_dim = head_dim});
  }
  all.push_back({.lengths = {1, 1, 97, 1, 31, 32, 33, 1, 130, 5, 64, 129, 0, 2},
                 .num_heads = 7,
                 .num_kv_heads = 1,
                 .head_dim = 24});
  all.push_back({.lengths = {300}, .num_heads = 6, .num_kv_heads = 3, .head_dim = 40});
  all.push_back(
      {.lengths = {70, 3}, .num_heads = 16, .num_kv_heads = 1, .head_dim = 576, .latent_dim = 512});
  for (const int64_t window : {1, 31, 40, 64, 100}) {
    all.push_back({.lengths = {2 * window + 5, 1, 210},
                   .num_heads = 4,
                   .num_kv_heads = 2,
                   .head_dim = 20,
                   .window = window});
  }
  all.push_back({.lengths = {90, 2},
                 .num_heads = 5,
                 .num_kv_heads = 1,
                 .head_dim = 48,
                 .latent_dim = 32,
                 .window = 33});
  all.push_back({.lengths = {130, 7}, .num_heads = 2, .num_kv_heads = 1, .spread = 5});
  for (const int64_t window : {0, 1, 40, 128}) {
    all.push_back({.lengths = {1, 290, 5},
                   .num_heads = 8,
                   .num_kv_heads = 2,
                   .head_dim = 64,
                   .window = window,
                   .has_sinks = true});
    all.push_back({.lengths = {1, 130, 70},
                   .num_heads = 4,
                   .num_kv_heads = 2,
                   .head_dim = 64,
                   .spread = 2,
                   .window = window,
                   .score_cap = 4});
  }
  return all;
}

// With tiny values: exponents of values, keys and gradients from 2^-130 to 1.
std::vector<AttentionData> data_of(const AttentionCase& c) {
  std::vector<AttentionData> all;
  all.emplace_back(c, kBF16);
  if (c.latent_dim > 0) return all;
  all.emplace_back(c, kBF16);
  const auto spread_out = [](Buffer& x, uint64_t seed, int span) {
    x.set_values(wide_buffer(kBF16, x.view().shape, seed, span).values());
  };
  spread_out(all[1].v, 5, 130);
  spread_out(all[1].d_out, 6, 130);
  spread_out(all[1].k, 7, 40);
  return all;
}

std::vector<Buffer> forward(const cpu::AttentionKernels& kernels, const AttentionCase& c,
                            const AttentionData& data, std::span<const AttentionSegment> segments,
                            int threads) {
  CpuBackend backend(choose_cpu_path(), threads);
  std::vector<Buffer> result;
  result.emplace_back(kBF16, c.out_shape());
  result.emplace_back(kF32, Shape{c.num_tokens(), c.num_heads});
  cpu::attention_tiled(backend, kernels, args_of(c, data, segments), result[0], result[1]);
  return result;
}

std::vector<Buffer> backward(const cpu::AttentionKernels& kernels, const AttentionCase& c,
                             const AttentionData& data, std::span<const AttentionSegment> segments,
                             const Buffer& out, const Buffer& lse, int threads) {
  CpuBackend backend(choose_cpu_path(), threads);
  std::vector<Buffer> result;
  result.emplace_back(kF32, c.q_shape());
  result.emplace_back(kF32, c.k_shape());
  result.emplace_back(kF32, c.v_shape());
  result.push_back(filled_buffer(kF32, lse.view().shape, 0));
  cpu::attention_backward_tiled(
      backend, kernels, args_of(c, data, segments),
      {out.view(), lse.view(), data.d_out.view(), result[0], result[1], result[2]}, result[3]);
  return result;
}

void expect_same(const std::vector<Buffer>& got, const std::vector<Buffer>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE("output " + std::to_string(i));
    expect_same_bits(got[i], want[i]);
  }
}

// Calls body(case, data, segments of the whole sequences).
template <typename Body>
void for_each_case(Body&& body) {
  for (const AttentionCase& c : cases()) {
    for (const AttentionData& data : data_of(c)) {
      SCOPED_TRACE(c.name());
      const TrainingSegments training(c, data);
      body(c, data, training.segments());
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(AttentionAmx, EnginesAndThreadsHaveEqualBits) {
  for_each_case([](const auto& c, const auto& data, auto segments) {
    std::vector<Buffer> want;
    std::vector<Buffer> want_grads;
    for (const AmxEngine& engine : amx_engines()) {
      for (const int threads : {1, 2}) {
        SCOPED_TRACE(engine.name + ", threads " + std::to_string(threads));
        const auto got = forward(*engine.kernels, c, data, segments, threads);
        const auto grads = backward(*engine.kernels, c, data, segments, got[0], got[1], threads);
        if (want.empty()) {
          for (const Buffer& x : got) want.push_back(x);
          for (const Buffer& x : grads) want_grads.push_back(x);
        }
        expect_same(got, want);
        expect_same(grads, want_grads);
      }
    }
  });
}

TEST(AttentionAmx, ChunksHaveTheBitsOfTheWhole) {
  for_each_case([](const auto& c, const auto& data, auto whole) {
    std::vector<Buffer> want;
    for (const int64_t chunk : {1000, 1, 7, 40}) {
      std::vector<std::unique_ptr<Pages>> pages;
      std::vector<AttentionSegment> segments;
      for (const AttentionSegment& s : whole) {
        for (int64_t row = s.begin; row < s.end; row += chunk) {
          const int64_t end = std::min(row + chunk, s.end);
          pages.push_back(std::make_unique<Pages>(data, s.begin, end - s.begin, 16));
          segments.push_back({row, end, row - s.begin, pages.back()->view()});
        }
      }
      for (const AmxEngine& engine : amx_engines()) {
        SCOPED_TRACE(engine.name + ", chunk " + std::to_string(chunk));
        const auto got = forward(*engine.kernels, c, data, segments, 2);
        if (want.empty()) {
          for (const Buffer& x : got) want.push_back(x);
        }
        expect_same(got, want);
      }
    }
  });
}

TEST(AttentionAmx, SequencesAloneHaveTheBitsOfTheBatch) {
  for_each_case([](const auto& c, const auto& data, auto segments) {
    for (const AmxEngine& engine : amx_engines()) {
      SCOPED_TRACE(engine.name);
      const auto want = forward(*engine.kernels, c, data, segments, 2);
      const auto want_grads = backward(*engine.kernels, c, data, segments, want[0], want[1], 2);
      CpuBackend backend(choose_cpu_path(), 2);
      const Buffer out(kBF16, c.out_shape()), lse(kF32, want[1].view().shape);
      const Buffer d_q(kF32, c.q_shape()), d_k(kF32, c.k_shape()), d_v(kF32, c.v_shape());
      const Buffer delta(kF32, want[1].view().shape);
      for (const AttentionSegment& segment : segments) {
        const AttentionArgs args = args_of(c, data, {&segment, 1});
        cpu::attention_tiled(backend, *engine.kernels, args, out, lse);
        cpu::attention_backward_tiled(
            backend, *engine.kernels, args,
            {want[0].view(), want[1].view(), data.d_out.view(), d_q, d_k, d_v}, delta);
      }
      expect_same({out, lse}, want);
      expect_same({d_q, d_k, d_v, delta}, want_grads);
    }
  });
}

TEST(AttentionAmx, IsCloseToTheDoubleReference) {
  for (const AttentionCase& c : cases()) {
    if (c.head_dim > 200) continue;
    SCOPED_TRACE(c.name());
    const AttentionData data(c, kBF16);
    const ExpectedAttention want = expected_attention(c, data, kBF16);
    const TrainingSegments training(c, data);
    for (const AmxEngine& engine : amx_engines()) {
      SCOPED_TRACE(engine.name);
      const auto got = forward(*engine.kernels, c, data, training.segments(), 2);
      expect_close(got[0], want.out.want, 1.0, want.out.bound);
      expect_close(got[1], want.lse.want, 1.0, want.lse.bound);
      const auto grads = backward(*engine.kernels, c, data, training.segments(), got[0], got[1], 2);
      expect_close(grads[0], want.d_q.want, 1.0, want.d_q.bound);
      expect_close(grads[1], want.d_k.want, 1.0, want.d_k.bound);
      expect_close(grads[2], want.d_v.want, 1.0, want.d_v.bound);
    }
  }
}

// Softmax over one key is the constant 1, and its gradient is not merely small.
TEST(AttentionAmx, OneVisibleKeyHasNoGradientOfScores) {
  const AttentionCase c{.lengths = {1, 1, 3}, .num_heads = 4, .num_kv_heads = 2, .head_dim = 80};
  for (const AttentionData& data : data_of(c)) {
    const TrainingSegments training(c, data);
    for (const AmxEngine& engine : amx_engines()) {
      SCOPED_TRACE(engine.name);
      const auto got = forward(*engine.kernels, c, data, training.segments(), 1);
      const auto grads = backward(*engine.kernels, c, data, training.segments(), got[0], got[1], 1);
      for (int64_t i = 0; i < 3 * 4 * 80; ++i) EXPECT_EQ(grads[0].get(i), 0.0) << i;
      for (int64_t i = 0; i < 2 * 2 * 80; ++i) EXPECT_EQ(grads[1].get(i), 0.0) << i;
    }
  }
}

// The gradients where every probability is one and delta is zero, in the path's own arithmetic:
// scores of zero and an lse of zero, so that the products alone decide every bit.
class OnesOracle {
 public:
  OnesOracle(const AttentionCase& c, const AttentionData& data)
      : c_(c), q_(data.q.view()), k_(data.k.view()), v_(data.v.view()), d_out_(data.d_out.view()) {}

  // Of the sequence of `length` rows from `begin` on.
  void fill(int64_t begin, int64_t length, float* d_q, float* d_k, float* d_v) {
    begin_ = begin;
    length_ = length;
    const int64_t group = c_.num_heads / c_.num_kv_heads;
    std::vector<float> sum_k(static_cast<size_t>(length * c_.head_dim));
    std::vector<float> sum_v(static_cast<size_t>(length * c_.head_dim));
    for (int64_t head = 0; head < c_.num_heads; ++head) {
      if (head % group == 0) {
        std::fill(sum_k.begin(), sum_k.end(), 0.0f);
        std::fill(sum_v.begin(), sum_v.end(), 0.0f);
      }
      make_d_s(head);
      for (int64_t i = 0; i < length; ++i) write_d_q(i, head, d_q);
      add(d_s_, q_, head, sum_k);
      add(p_, d_out_, head, sum_v);
      if (head % group != group - 1) continue;
      write(sum_k, c_.scale(), head / group, d_k);
      write(sum_v, 1.0f, head / group, d_v);
    }
  }

 private:
  [[nodiscard]] const Bf16* row(const TensorView& x, int64_t t, int64_t head) const {
    return x.bf16() + ((begin_ + t) * x.shape[1] + head) * c_.head_dim;
  }
  // P and dS [T, T], zero where a query does not see a key.
  void make_d_s(int64_t head) {
    const int64_t kv_head = head * c_.num_kv_heads / c_.num_heads;
    p_.assign(static_cast<size_t>(length_ * length_), Bf16{});
    d_s_ = p_;
    for (int64_t i = 0; i < length_; ++i) {
      for (int64_t j = c_.window == 0 ? 0 : std::max<int64_t>(0, i - c_.window + 1); j <= i; ++j) {
        const auto at = static_cast<size_t>(i * length_ + j);
        p_[at] = to_bf16(1.0f);
        d_s_[at] = to_bf16(
            ref::add_product(0, row(d_out_, i, head), 1, row(v_, j, kv_head), 1, c_.head_dim));
      }
    }
  }
  void write_d_q(int64_t i, int64_t head, float* d_q) const {
    const int64_t kv_head = head * c_.num_kv_heads / c_.num_heads;
    for (int64_t h = 0; h < c_.head_dim; ++h) {
      const float sum = ref::add_product(0, d_s_.data() + i * length_, 1, row(k_, 0, kv_head) + h,
                                         c_.num_kv_heads * c_.head_dim, length_);
      d_q[((begin_ + i) * c_.num_heads + head) * c_.head_dim + h] = sum * c_.scale() + 0.0f;
    }
  }
  // sum [T, H] += x^T rows of `y`.
  void add(const std::vector<Bf16>& x, const TensorView& y, int64_t head,
           std::vector<float>& sum) const {
    for (int64_t j = 0; j < length_; ++j) {
      for (int64_t h = 0; h < c_.head_dim; ++h) {
        float& to = sum[static_cast<size_t>(j * c_.head_dim + h)];
        to = ref::add_product(to, x.data() + j, length_, row(y, 0, head) + h,
                              c_.num_heads * c_.head_dim, length_);
      }
    }
  }
  void write(const std::vector<float>& sum, float scale, int64_t kv_head, float* to) const {
    for (int64_t j = 0; j < length_; ++j) {
      for (int64_t h = 0; h < c_.head_dim; ++h) {
        to[((begin_ + j) * c_.num_kv_heads + kv_head) * c_.head_dim + h] =
            sum[static_cast<size_t>(j * c_.head_dim + h)] * scale + 0.0f;
      }
    }
  }

  const AttentionCase& c_;
  TensorView q_, k_, v_, d_out_;
  int64_t begin_ = 0, length_ = 0;
  std::vector<Bf16> p_, d_s_;
};

void expect_gradients_of_ones(const AttentionCase& c, const AttentionData& data) {
  const Buffer out = filled_buffer(kBF16, c.out_shape(), 0);
  const Buffer lse = filled_buffer(kF32, {c.num_tokens(), c.num_heads}, 0);
  const Buffer no_delta = filled_buffer(kF32, lse.view().shape, 0);  // where out is zero
  const Buffer d_q(kF32, c.q_shape()), d_k(kF32, c.k_shape()), d_v(kF32, c.v_shape());
  OnesOracle oracle(c, data);
  const TrainingSegments training(c, data);
  for (const AttentionSegment& s : training.segments()) {
    oracle.fill(s.begin, s.end - s.begin, d_q.view().f32(), d_k.view().f32(), d_v.view().f32());
  }
  for (const AmxEngine& engine : amx_engines()) {
    for (const int threads : {1, 7}) {
      SCOPED_TRACE(engine.name + ", threads " + std::to_string(threads));
      expect_same(backward(*engine.kernels, c, data, training.segments(), out, lse, threads),
                  {d_q, d_k, d_v, no_delta});
    }
  }
}

TEST(AttentionAmx, GradientsAreTheOraclesGroups) {
  for (const int64_t window : {0, 40, 75}) {
    const AttentionCase c{.lengths = {1, 70, 3, 131},
                          .num_heads = 4,
                          .num_kv_heads = 2,
                          .head_dim = 35,
                          .window = window};
    for (const AttentionData& data : data_of(c)) {
      // Scores are zero where q or k is.
      AttentionData no_q = data;
      no_q.q.set_values(std::vector<double>(static_cast<size_t>(data.q.size())));
      expect_gradients_of_ones(c, no_q);
      AttentionData no_k = data;
      no_k.k.set_values(std::vector<double>(static_cast<size_t>(data.k.size())));
      expect_gradients_of_ones(c, no_k);
      if (HasFailure()) return;
    }
  }
}

struct Words {
  std::vector<uint32_t> words;
  explicit Words(int64_t count) : words(static_cast<size_t>(count)) {}
  // Elements 2 i and 2 i + 1 are those of word i.
  [[nodiscard]] const Bf16* elements() const { return reinterpret_cast<const Bf16*>(words.data()); }
};

// Word i is a pair of numbers with wide exponents.
Words random_words(int64_t count, uint64_t seed) {
  Words w(count);
  const Buffer values = wide_buffer(kBF16, {1, 2 * count}, seed, 90);
  std::memcpy(w.words.data(), values.view().data, static_cast<size_t>(4 * count));
  return w;
}

// A product of steps [phase, phase + steps) of an axis, whose other words are zero.
struct ProductCase {
  int64_t rows;
  int64_t phase;
  int64_t steps;
  int64_t lanes;
  bool in_depth_form;  // x
};

void expect_product(const cpu::AttentionKernels& kernels, const ProductCase& c) {
  constexpr int64_t kAxis = 64;  // steps of x and of the panel
  constexpr int64_t kRows = 64;
  Words x = random_words(kAxis * kRows, 1);
  Words panel = random_words(kAxis * c.lanes, 2);
  const int64_t x_row = c.in_depth_form ? 1 : kAxis;
  const int64_t x_step = c.in_depth_form ? kRows : 1;
  for (int64_t d = 0; d < kAxis; ++d) {
    if (d >= c.phase && d < c.phase + c.steps) continue;
    for (int64_t r = 0; r < kRows; ++r) x.words[static_cast<size_t>(r * x_row + d * x_step)] = 0;
    std::fill_n(panel.words.data() + d * c.lanes, c.lanes, 0u);
  }
  const Buffer start = wide_buffer(kF32, {kRows, c.lanes}, 3, 130);
  const Buffer got = start;
  kernels.accumulate_product({.x = x.words.data() + c.phase * x_step,
                              .x_row = x_row,
                              .x_step = x_step,
                              .panel = panel.words.data() + c.phase * c.lanes,
                              .panel_width = c.lanes,
                              .steps = c.steps,
                              .rows = c.rows,
                              .lanes = c.lanes,
                              .acc = got.view().f32(),
                              .acc_stride = c.lanes,
                              .phase = c.phase});
  const int64_t count = 2 * (c.phase + c.steps);
  for (int64_t r = 0; r < kRows; ++r) {
    std::vector<Bf16> row(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      row[static_cast<size_t>(i)] = x.elements()[2 * (r * x_row + i / 2 * x_step) + i % 2];
    }
    for (int64_t lane = 0; lane < c.lanes; ++lane) {
      std::vector<Bf16> column(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        column[static_cast<size_t>(i)] = panel.elements()[2 * (i / 2 * c.lanes + lane) + i % 2];
      }
      float want = start.view().f32()[r * c.lanes + lane];
      if (r < c.rows) want = ref::add_product(want, row.data(), 1, column.data(), 1, count);
      float is = got.view().f32()[r * c.lanes + lane];
      // Signs of zero are no result of attention.
      want += 0.0f, is += 0.0f;
      ASSERT_EQ(std::memcmp(&is, &want, 4), 0)
          << "row " << r << " lane " << lane << ": got " << is << ", want " << want;
    }
  }
}

TEST(AttentionAmx, ProductsAreTheOraclesGroups) {
  for (const AmxEngine& engine : amx_engines()) {
    for (const int64_t lanes : {16, 48, 80}) {
      for (const int64_t steps : {1, 5, 15, 16, 17, 31, 32, 40}) {
        for (const int64_t rows : {1, 2, 3, 4, 5, 6, 16, 21, 32, 50, 64}) {
          if (rows > engine.kernels->tile_rows) continue;
          SCOPED_TRACE(engine.name + ", lanes " + std::to_string(lanes) + ", steps " +
                       std::to_string(steps) + ", rows " + std::to_string(rows));
          expect_product(*engine.kernels, {rows, 0, steps, lanes, false});
          for (const int64_t phase : {0, 1, 8, 15}) {
            expect_product(*engine.kernels, {rows, phase, steps, lanes, true});
          }
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(AttentionAmx, DotOfLanesIsTheOraclesGroups) {
  for (const int64_t steps : {1, 5, 16, 17, 40}) {
    const Words a = random_words(steps * kKeyBlock, 1);
    const Words b = random_words(steps * kKeyBlock, 2);
    for (const AmxEngine& engine : amx_engines()) {
      float got[kKeyBlock];
      engine.kernels->dot_lanes(a.words.data(), b.words.data(), steps, got);
      for (int64_t lane = 0; lane < kKeyBlock; ++lane) {
        std::vector<Bf16> x, y;
        for (int64_t i = 0; i < 2 * steps; ++i) {
          x.push_back(a.elements()[2 * (i / 2 * kKeyBlock + lane) + i % 2]);
          y.push_back(b.elements()[2 * (i / 2 * kKeyBlock + lane) + i % 2]);
        }
        const float want = ref::add_product(0, x.data(), 1, y.data(), 1, 2 * steps);
        EXPECT_EQ(std::memcmp(&got[lane], &want, 4), 0) << engine.name << " lane " << lane;
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops::testing
