// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_net.h"

#include <complex>
#include <limits>
#include <memory>

#include "tests/ops/delta_net_test.h"

namespace strata::ops::testing {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kTypes[] = {kF32, kBF16};

std::vector<DeltaCase> cases() {
  std::vector<DeltaCase> all;
  // Every border of a chunk, and of the tiles of 3 and 6 rows in it. About a third of a state is
  // left behind a chunk: what one chunk does to those before it must show.
  all.push_back({.lengths = {1,  2,  3,  4,  5, 6,   7,   15,  16,  17,  48,  62,
                             63, 64, 65, 66, 0, 127, 128, 129, 191, 192, 193, 200},
                 .decay = 0.01});
  const auto shaped = [&](std::vector<int64_t> lengths, DeltaNetShape shape) {
    all.push_back({.lengths = std::move(lengths), .shape = shape});
  };
  // Widths below, at and above a vector and a panel; grouped heads.
  shaped({130}, {1, 1, 8, 8});
  shaped({70, 3}, {2, 2, 24, 16});
  shaped({129}, {1, 3, 16, 40});
  shaped({65}, {2, 4, 40, 8});
  shaped({130}, {1, 1, 72, 64});
  shaped({66, 130}, {1, 2, 64, 80});
  shaped({97}, {1, 1, 136, 24});
  shaped({129}, {1, 1, 128, 128});
  all.back().stride = 16;
  shaped({70}, {1, 1, 16, 256});
  // Widths that nothing divides.
  shaped({67, 5}, {2, 4, 5, 7});
  shaped({66}, {1, 2, 3, 1});
  shaped({130, 65}, {1, 1, 17, 67});
  shaped({129}, {1, 2, 71, 3});
  all.push_back({.lengths = {260}, .shape = {2, 4, 128, 72}, .decay = 0.01});
  all.push_back({.lengths = {200}, .shape = {1, 2, 32, 24}, .decay = 50, .stride = 3});
  all.push_back({.lengths = {200}, .shape = {1, 2, 64, 24}, .decay = 1e-6});
  return all;
}

void expect_close_chunks(const Buffer& got, const std::vector<double>& want, const DeltaCase& c) {
  const double bound = chunks_bound(c, got.view().dtype);
  EXPECT_LE(relative_l2(got.values(), want), bound);
  double largest = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  expect_close(got, want, bound, std::vector<double>(want.size(), largest));
}

TEST(DeltaNet, MatchesDoubleReference) {
  for (const DeltaCase& c : cases()) {
    for (const DType type : kTypes) {
      const DeltaData data(c, type);
      const auto segments = whole_segments(c);
      for (const DType result : kTypes) {
        if (type == kF32 && result == kBF16) continue;
        const ExpectedDelta want = expected_delta(c, data, result);
        for (const CpuPath path : supported_paths()) {
          SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(type)) +
                       " to " + std::string(dtype_name(result)) + " " + c.name());
          CpuBackend backend(path, 2);
          const Buffer out = run_delta(backend, c, data, segments);
          expect_close(out, want.out.want, 1.0, want.out.bound);
          const DeltaGrads grads = run_delta_backward(backend, c, data, segments, result);
          expect_close(grads.d_qkv, want.d_qkv.want, 1.0, want.d_qkv.bound);
          expect_close(grads.d_log_decay, want.d_log_decay.want, 1.0, want.d_log_decay.bound);
          expect_close(grads.d_beta, want.d_beta.want, 1.0, want.d_beta.bound);
          expect_close_chunks(out, want.out.want, c);
          expect_close_chunks(grads.d_qkv, want.d_qkv.want, c);
          expect_close_chunks(grads.d_log_decay, want.d_log_decay.want, c);
          expect_close_chunks(grads.d_beta, want.d_beta.want, c);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// The bounds come from the chunk form: in double it is the recurrence, and they are small beside
// what they bound, but where little decays: magnitudes then grow with every row, as terms that
// cancel in truth add in the bound. There expect_close_chunks is what fails.
TEST(DeltaNet, ChunkFormIsTheRecurrence) {
  for (const DeltaCase& c : cases()) {
    SCOPED_TRACE(c.name());
    const ExpectedDelta e = expected_delta(c, DeltaData(c, kF32), kF32);
    for (const DeltaExpected* x : {&e.out, &e.d_qkv, &e.d_log_decay, &e.d_beta}) {
      EXPECT_LT(relative_l2(x->chunked, x->want), 1e-11);
      if (c.decay < 0.1) continue;
      double bound = 0;
      double norm = 0;
      for (size_t i = 0; i < x->want.size(); ++i) {
        bound += x->bound[i] * x->bound[i];
        norm += x->want[i] * x->want[i];
      }
      EXPECT_LT(std::sqrt(bound / norm), 2e-3);
    }
  }
}

// The oracle's gradients against its own derivative by complex step.
TEST(DeltaNet, OracleGradientsAreDerivatives) {
  using Complex = std::complex<double>;
  const DeltaCase c{.lengths = {9}, .shape = {2, 4, 8, 16}};
  const DeltaData data(c, kF32);
  const ref::DeltaNetShape s = c.ref_shape(9);
  std::vector<double> x = data.qkv.values();
  const size_t g_at = x.size();
  const auto g = data.log_decay.values();
  const auto beta = data.beta.values();
  x.insert(x.end(), g.begin(), g.end());
  const size_t beta_at = x.size();
  x.insert(x.end(), beta.begin(), beta.end());
  const auto d_out = data.d_out.values();
  const auto forward = [&](const std::vector<Complex>& at) {
    std::vector<Complex> out(d_out.size());
    ref::delta_net(s, at.data(), &at[g_at], &at[beta_at], out.data());
    return out;
  };
  const std::vector<double> want = complex_step(forward, x, d_out);
  std::vector<double> got(x.size());
  ref::delta_net_backward(s, x.data(), &x[g_at], &x[beta_at], d_out.data(), got.data(), &got[g_at],
                          &got[beta_at]);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 1e-12 * (1 + std::abs(want[i]))) << i;
  }
  // And by central differences of a few, which the complex step cannot share a fault with.
  for (size_t i = 0; i < x.size(); i += 37) {
    constexpr double kStep = 1e-5;
    double difference = 0;
    for (const double sign : {1.0, -1.0}) {
      std::vector<double> moved = x;
      moved[i] += sign * kStep;
      std::vector<double> out(d_out.size());
      ref::delta_net(s, moved.data(), &moved[g_at], &moved[beta_at], out.data());
      for (size_t j = 0; j < out.size(); ++j) difference += sign * d_out[j] * out[j];
    }
    EXPECT_NEAR(difference / (2 * kStep), want[i], 1e-7 * (1 + std::abs(want[i]))) << i;
  }
}

// Threads and paths move no bit.
TEST(DeltaNet, SameBitsEverywhere) {
  for (const DeltaCase& c : cases()) {
    for (const DType type : kTypes) {
      if (type == kBF16 && c.num_tokens() > 200) continue;
      SCOPED_TRACE(std::string(dtype_name(type)) + " " + c.name());
      const DeltaData data(c, type);
      const auto segments = whole_segments(c);
      run_everywhere([&](Backend& backend) {
        std::vector<Buffer> outputs{run_delta(backend, c, data, segments)};
        DeltaGrads grads = run_delta_backward(backend, c, data, segments, type);
        outputs.push_back(grads.d_qkv);
        outputs.push_back(grads.d_log_decay);
        outputs.push_back(grads.d_beta);
        return outputs;
      });
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// A sequence's state in memory that starts as NaN.
std::vector<Buffer> new_states(const DeltaCase& c) {
  EXPECT_EQ(delta_state_bytes(c.shape) % 64, 0);
  std::vector<Buffer> states;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    states.emplace_back(kF32, Shape{delta_state_bytes(c.shape) / 4});
  }
  return states;
}

// All sequences advance together, `chunk` rows a call (fewer at their ends), as rows of one batch
// in the order of the sequences; every other sequence by one row more.
Buffer run_in_chunks(Backend& backend, const DeltaCase& c, const DeltaData& data, int64_t chunk) {
  Buffer out(data.qkv.view().dtype, c.out_shape());
  std::vector<Buffer> states = new_states(c);
  const auto whole = whole_segments(c);
  std::vector<int64_t> done(whole.size(), 0);
  for (bool more = true; more;) {
    more = false;
    std::vector<StateSegment> segments;
    for (size_t s = 0; s < whole.size(); ++s) {
      const int64_t length = whole[s].end - whole[s].begin;
      const int64_t count = std::min(chunk + static_cast<int64_t>(s % 2), length - done[s]);
      if (count == 0) continue;
      segments.push_back({.begin = whole[s].begin + done[s],
                          .end = whole[s].begin + done[s] + count,
                          .first_position = done[s],
                          .state = states[s].view().data});
      done[s] += count;
      more = true;
    }
    if (more) delta_net(backend, delta_args(c, data, segments), out);
  }
  for (const Buffer& state : states) EXPECT_TRUE(state.intact());
  return out;
}

TEST(DeltaNet, AnySplitHasTheBitsOfOnePass) {
  for (const DeltaCase& c : cases()) {
    for (const DType type : kTypes) {
      const DeltaData data(c, type);
      for (const CpuPath path : supported_paths()) {
        SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(type)) + " " +
                     c.name());
        CpuBackend backend(path, 2);
        const Buffer want = run_delta(backend, c, data, whole_segments(c));
        for (const int64_t chunk : {1, 2, 7, 63, 64, 65, 1000}) {
          if (path == CpuPath::kReference && chunk != 7) continue;
          SCOPED_TRACE("chunk " + std::to_string(chunk));
          expect_same_bits(run_in_chunks(backend, c, data, chunk), want);
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(DeltaNet, SequencesAloneHaveTheBitsOfTheBatch) {
  const DeltaCase c{.lengths = {70, 1, 129, 64}, .shape = {2, 4, 24, 40}};
  for (const DType type : kTypes) {
    const DeltaData data(c, type);
    const auto segments = whole_segments(c);
    for (const CpuPath path : supported_paths()) {
      SCOPED_TRACE(cpu_path_name(path));
      CpuBackend backend(path, 2);
      const Buffer want = run_delta(backend, c, data, segments);
      const DeltaGrads want_grads = run_delta_backward(backend, c, data, segments, type);
      const Buffer out(type, c.out_shape());
      const DeltaGrads grads{Buffer(type, c.qkv_shape()), Buffer(kF32, c.head_shape()),
                             Buffer(kF32, c.head_shape())};
      for (const StateSegment& segment : segments) {
        delta_net(backend, delta_args(c, data, {&segment, 1}), out);
        delta_net_backward(backend, delta_args(c, data, {&segment, 1}), data.d_out, grads.d_qkv,
                           grads.d_log_decay, grads.d_beta);
      }
      expect_same_bits(out, want);
      expect_same_bits(grads.d_qkv, want_grads.d_qkv);
      expect_same_bits(grads.d_log_decay, want_grads.d_log_decay);
      expect_same_bits(grads.d_beta, want_grads.d_beta);
    }
  }
}

// NaN of one sequence reaches its own later rows, and nothing else: not the sequences that a worker
// takes after it, nor earlier rows, even of the same chunk and tile.
TEST(DeltaNet, NanReachesLaterRowsOfItsSequenceAlone) {
  const DeltaCase c{.lengths = {70, 67, 130}, .shape = {1, 2, 16, 24}};
  constexpr int64_t kPoisoned = 70 + 37;
  for (const DType type : kTypes) {
    DeltaData data(c, type);
    const auto segments = whole_segments(c);
    for (const CpuPath path : supported_paths()) {
      SCOPED_TRACE(cpu_path_name(path));
      CpuBackend backend(path, 1);
      const Buffer clean = run_delta(backend, c, data, segments);
      const DeltaGrads clean_grads = run_delta_backward(backend, c, data, segments, kF32);
      const int64_t width = c.shape.width();
      const double kept = data.qkv.get(kPoisoned * width + 16);  // of k
      data.qkv.set(kPoisoned * width + 16, std::nan(""));
      const Buffer out = run_delta(backend, c, data, segments);
      const DeltaGrads grads = run_delta_backward(backend, c, data, segments, kF32);
      data.qkv.set(kPoisoned * width + 16, kept);
      for (int64_t t = 0; t < c.num_tokens(); ++t) {
        const bool later = t >= kPoisoned && t < 70 + 67;
        for (int64_t i = t * 48; i < (t + 1) * 48; ++i) {
          EXPECT_EQ(std::isnan(out.get(i)), later) << t;
          if (!later) {
            EXPECT_EQ(out.get(i), clean.get(i)) << t;
          }
        }
        if (t >= 70 && t < 70 + 67) continue;
        for (int64_t i = t * width; i < (t + 1) * width; ++i) {
          EXPECT_EQ(grads.d_qkv.get(i), clean_grads.d_qkv.get(i)) << t;
        }
      }
    }
  }
}

// A row's result does not move with what comes after it.
TEST(DeltaNet, LaterRowsMoveNoBit) {
  const DeltaCase c{.lengths = {150}, .shape = {1, 2, 24, 72}};
  const DeltaData data(c, kF32);
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 2);
    const Buffer want = run_delta(backend, c, data, whole_segments(c));
    for (const int64_t end : {1, 2, 16, 33, 64, 65, 100, 128, 149}) {
      const StateSegment prefix{.begin = 0, .end = end};
      const Buffer got = run_delta(backend, c, data, {&prefix, 1});
      for (int64_t i = 0; i < want.size(); ++i) {
        if (i < end * 144) {
          ASSERT_EQ(got.get(i), want.get(i)) << end << " " << i;
        } else {
          ASSERT_TRUE(std::isnan(got.get(i))) << "a row of no segment was written";
        }
      }
    }
  }
}

// e^g is zero: a row knows itself alone, o = beta (q . k) v, and nothing is not finite.
TEST(DeltaNet, DecayWithoutEnd) {
  const DeltaCase c{.lengths = {140}, .shape = {1, 1, 16, 8}};
  for (const double g : {-128.0, -1e30, -std::numeric_limits<double>::infinity()}) {
    DeltaData data(c, kF32);
    for (int64_t t = 0; t < 140; ++t) data.log_decay.set(t, g);
    const ref::DeltaNetShape row = c.ref_shape(1);
    for (const CpuPath path : supported_paths()) {
      SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::to_string(g));
      CpuBackend backend(path, 2);
      const Buffer out = run_delta(backend, c, data, whole_segments(c));
      const DeltaGrads grads = run_delta_backward(backend, c, data, whole_segments(c), kF32);
      const auto qkv = data.qkv.values();
      const auto beta = data.beta.values();
      for (int64_t t = 0; t < 140; ++t) {
        const double none = 0;
        std::vector<double> want(8);
        ref::delta_net(row, &qkv[static_cast<size_t>(t * 40)], &none, &beta[static_cast<size_t>(t)],
                       want.data());
        for (int64_t e = 0; e < 8; ++e) {
          // The dot's terms are smaller than |q| |k| = 1 / 4 together.
          const double scale = 0.25 * std::abs(data.qkv.get(t * 40 + 32 + e));
          EXPECT_NEAR(out.get(t * 8 + e), want[static_cast<size_t>(e)],
                      scale * dot_tolerance(16 + 16, kF32));
        }
        EXPECT_EQ(grads.d_log_decay.get(t), 0.0);
      }
      for (int64_t i = 0; i < grads.d_qkv.size(); ++i) {
        ASSERT_TRUE(std::isfinite(grads.d_qkv.get(i)));
      }
    }
  }
}

// Strong decays between weak ones: what e^D is made of must not drown in the large sums before.
TEST(DeltaNet, WeakDecayBehindStrongOnesIsExact) {
  DeltaCase c{.lengths = {64}, .shape = {1, 1, 32, 16}};
  DeltaData data(c, kF32);
  for (int64_t t = 0; t < 64; ++t) data.log_decay.set(t, t < 48 ? -100.0 : -0.01);
  const ExpectedDelta want = expected_delta(c, data, kF32);
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    CpuBackend backend(path, 1);
    const Buffer out = run_delta(backend, c, data, whole_segments(c));
    expect_close(out, want.out.want, 1.0, want.out.bound);
    EXPECT_LT(relative_l2(out.values(), want.out.want), 1e-6);
  }
}

// Nothing grows over a long sequence, neither what hardly decays nor decays whose sum e cannot be
// raised to: e^-G_j, of which e^(G_i - G_j) is often made, overflows.
void check_seventy_thousand_rows(double decay) {
  constexpr int64_t kRows = 70'001;
  DeltaCase c{.lengths = {kRows}, .shape = {1, 1, 8, 8}, .decay = decay};
  const DeltaData data(c, kF32);
  const auto segments = whole_segments(c);
  const ref::DeltaNetShape s = c.ref_shape(kRows);
  const auto qkv = data.qkv.values();
  const auto g = data.log_decay.values();
  const auto beta = data.beta.values();
  std::vector<double> want(static_cast<size_t>(kRows * 8));
  ref::delta_net(s, qkv.data(), g.data(), beta.data(), want.data());
  CpuBackend backend(choose_cpu_path(), 2);
  const Buffer out = run_delta(backend, c, data, segments);
  expect_close_chunks(out, want, c);
  const DeltaGrads grads = run_delta_backward(backend, c, data, segments, kF32);
  for (const Buffer* x : {&grads.d_qkv, &grads.d_log_decay, &grads.d_beta}) {
    for (int64_t i = 0; i < x->size(); ++i) ASSERT_TRUE(std::isfinite(x->get(i))) << i;
  }
}

TEST(DeltaNet, SeventyThousandRows) {
  for (const double decay : {1e-6, 0.1}) {
    SCOPED_TRACE(decay);
    check_seventy_thousand_rows(decay);
  }
}

// Keys, queries and values of zero have a norm of 1e-3 and finite gradients.
TEST(DeltaNet, ZerosAreFinite) {
  const DeltaCase c{.lengths = {70}, .shape = {1, 1, 16, 16}};
  DeltaData data(c, kF32);
  for (int64_t i = 0; i < data.qkv.size(); ++i) data.qkv.set(i, 0);
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 1);
    const Buffer out = run_delta(backend, c, data, whole_segments(c));
    for (int64_t i = 0; i < out.size(); ++i) EXPECT_EQ(out.get(i), 0.0);
    const DeltaGrads grads = run_delta_backward(backend, c, data, whole_segments(c), kF32);
    for (int64_t i = 0; i < grads.d_qkv.size(); ++i) EXPECT_EQ(grads.d_qkv.get(i), 0.0);
  }
}

TEST(DeltaNet, EmptySequencesTakeNoPart) {
  const DeltaCase alone{.lengths = {5}}, among{.lengths = {0, 5, 0}};
  const DeltaData data(alone, kF32);
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    expect_same_bits(run_delta(backend, among, data, whole_segments(among)),
                     run_delta(backend, alone, data, whole_segments(alone)));
    const auto d_qkv_of = [&](const DeltaCase& c) {
      return run_delta_backward(backend, c, data, whole_segments(c), kF32).d_qkv;
    };
    expect_same_bits(d_qkv_of(among), d_qkv_of(alone));
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {0, 0}}) {
      const DeltaCase c{.lengths = lengths};
      const DeltaData none(c, kF32);
      EXPECT_EQ(run_delta(backend, c, none, whole_segments(c)).view().rows(), 0);
      run_delta_backward(backend, c, none, whole_segments(c), kF32);
    }
  }
}

// What a counting backend counts is what is taken, with states or without; a warm call takes
// nothing new.
TEST(DeltaNet, ScratchIsCountedBeforehand) {
  const DeltaCase c{.lengths = {300, 40}, .shape = {2, 4, 64, 80}};
  const DeltaData data(c, kBF16);
  for (const CpuPath path : supported_paths()) {
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(cpu_path_name(path));
      for (const bool is_backward : {false, true}) {
        const auto call = [&](Backend& backend) {
          if (is_backward) {
            run_delta_backward(backend, c, data, whole_segments(c), kBF16);
          } else {
            run_delta(backend, c, data, whole_segments(c));
          }
        };
        CpuBackend counting = CpuBackend::counting(path, threads);
        call(counting);
        CpuBackend backend(path, threads);
        backend.scratch().book(counting.scratch().high_water());
        call(backend);
        call(backend);
        EXPECT_EQ(backend.scratch().high_water(), counting.scratch().high_water());
        EXPECT_EQ(backend.scratch().grown(), 0);
      }
      const StateSegment decode{.begin = 0, .end = 1, .first_position = 70};
      CpuBackend counting = CpuBackend::counting(path, threads);
      delta_net(counting, delta_args(c, data, {&decode, 1}), Buffer(kBF16, c.out_shape()));
      CpuBackend backend(path, threads);
      run_delta(backend, c, data, whole_segments(c));
      EXPECT_EQ(backend.scratch().high_water(), counting.scratch().high_water());
    }
  }
}

TEST(DeltaNet, FlopsAreCountedByHand) {
  const DeltaNetShape shape{
      .num_key_heads = 1, .num_value_heads = 2, .key_dim = 8, .value_dim = 16};
  EXPECT_EQ(delta_net_flops(shape, 0), 0);
  // One row: q . k, and P u of each value head.
  EXPECT_EQ(delta_net_flops(shape, 1), 2 * (8 + 2 * 16));
  // 65 rows: a chunk and a row that reads its state.
  EXPECT_EQ(delta_net_flops(shape, 65),
            2 * ((64 * 64 + 1) * 8 + 2 * ((64 * 64 + 1) * 16 + (64 + 2) * 8 * 16)));
  EXPECT_EQ(delta_net_backward_flops(shape, 1), 2 * (3 * 8 + 2 * 2 * 16));
}

TEST(DeltaNet, WrongArgumentsDie) {
  CpuBackend backend(CpuPath::kReference, 1);
  const DeltaCase c{.lengths = {4}};
  const DeltaData data(c, kF32);
  const Buffer out(kF32, c.out_shape());
  const auto run = [&](const DeltaNetArgs& args) { delta_net(backend, args, out); };
  const StateSegment beyond{.begin = 0, .end = 5};
  EXPECT_DEATH(run(delta_args(c, data, {&beyond, 1})), "s.end");
  const StateSegment stateless{.begin = 0, .end = 4, .first_position = 64};
  EXPECT_DEATH(run(delta_args(c, data, {&stateless, 1})), "first_position");
  const auto segments = whole_segments(c);
  for (const DeltaNetShape& shape : {DeltaNetShape{1, 1, 0, 24}, DeltaNetShape{1, 1, 18, -12},
                                     DeltaNetShape{2, 1, 8, 16}, DeltaNetShape{0, 1, 8, 48}}) {
    DeltaNetArgs args = delta_args(c, data, segments);
    args.shape = shape;
    EXPECT_DEATH(run(args), "s\\.(key_dim|value_dim|num_key_heads)");
  }
  DeltaNetArgs args = delta_args(c, data, segments);
  args.shape.key_dim = 8;
  EXPECT_DEATH(run(args), "width");
  args = delta_args(c, data, segments);
  args.beta = out;
  EXPECT_DEATH(run(args), "view.shape == want");
}

}  // namespace
}  // namespace strata::ops::testing
