// SPDX-License-Identifier: Apache-2.0
// Compressors against the double reference, and the bits of any split of a sequence.
#include "ops/compressor.h"

#include "ops/ref/compressor.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

struct Case {
  std::vector<int64_t> lengths;
  int64_t ratio, channels;
  bool overlap;
  [[nodiscard]] int64_t width() const { return overlap ? 2 * channels : channels; }
  [[nodiscard]] int64_t tokens() const {
    int64_t sum = 0;
    for (const int64_t n : lengths) sum += n;
    return sum;
  }
  [[nodiscard]] int64_t entries() const {
    int64_t sum = 0;
    for (const int64_t n : lengths) sum += n / ratio;
    return sum;
  }
};

const Case kCases[] = {{{}, 4, 16, true},
                       {{3}, 4, 16, true},
                       {{4, 1, 17}, 4, 37, true},
                       {{9, 12, 2}, 3, 130, true},
                       {{127, 128, 129, 300}, 128, 17, false},
                       {{6, 7, 8, 21}, 7, 64, false},
                       {{5, 1}, 1, 16, true}};

struct Inputs {
  Buffer kv, gate, bias;
  explicit Inputs(const Case& c)
      : kv(random_buffer(kF32, {c.tokens(), c.width()}, {.seed = 1})),
        gate(random_buffer(kF32, {c.tokens(), c.width()}, {.seed = 2, .scale = 2})),
        bias(random_buffer(kF32, {c.ratio, c.width()}, {.seed = 3})) {}
  [[nodiscard]] CompressorArgs args(const Case& c,
                                    const std::vector<StateSegment>& segments) const {
    return {.kv = kv, .gate = gate, .bias = bias, .overlap = c.overlap, .segments = segments};
  }
};

std::vector<StateSegment> segments_of(const Case& c) {
  std::vector<StateSegment> segments;
  int64_t begin = 0;
  for (const int64_t n : c.lengths) {
    segments.push_back({.begin = begin, .end = begin + n});
    begin += n;
  }
  return segments;
}

std::vector<double> rows(const Buffer& x, int64_t begin, int64_t end) {
  const auto values = x.values();
  const int64_t width = x.view().cols();
  return {values.begin() + begin * width, values.begin() + end * width};
}

TEST(Compressor, MatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.ratio);
    const Inputs in(c);
    const auto segments = segments_of(c);
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(kF32, {c.entries(), c.channels})};
      compress(backend, in.args(c, segments), out[0]);
      return out;
    });
    std::vector<double> want, size;
    for (const StateSegment& s : segments) {
      auto kv = rows(in.kv, s.begin, s.end);
      const auto gate = rows(in.gate, s.begin, s.end);
      const auto of = ref::compress(c.ratio, c.overlap, kv, gate, in.bias.values());
      want.insert(want.end(), of.begin(), of.end());
      for (double& value : kv) value = std::abs(value);
      const auto sizes = ref::compress(c.ratio, c.overlap, kv, gate, in.bias.values());
      size.insert(size.end(), sizes.begin(), sizes.end());
    }
    // Logits below 16 are rounded once before exp, whose own error is below 2 units; two chains
    // and a quotient.
    const int64_t terms = compressor_span(c.ratio, c.overlap);
    expect_close(outputs[0], want, 2 * (16 + 2 + static_cast<double>(terms) + 1) * 0x1p-24, size);
  }
}

TEST(Compressor, BackwardMatchesComplexStep) {
  for (const Case& c : {Case{{9, 4, 3}, 4, 5, true}, Case{{7, 2, 15}, 7, 3, false}}) {
    for (const DType type : {kF32, kBF16}) {
      const Inputs in(c);
      const auto segments = segments_of(c);
      const Buffer d = random_buffer(kF32, {c.entries(), c.channels}, {.seed = 4});
      const Buffer before = random_buffer(kF32, {c.ratio, c.width()}, {.seed = 5});
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {Buffer(type, {c.tokens(), c.width()}),
                                   Buffer(type, {c.tokens(), c.width()}), before};
        compress_backward(backend, in.args(c, segments), d, out[0], out[1], out[2]);
        return out;
      });
      using Complex = std::vector<std::complex<double>>;
      std::vector<double> d_kv, d_gate, d_bias = before.values();
      int64_t entry = 0;
      for (const StateSegment& s : segments) {
        const int64_t count = (s.end - s.begin) / c.ratio;
        const auto weights = rows(d, entry, entry + count);
        entry += count;
        const auto kv = rows(in.kv, s.begin, s.end), gate = rows(in.gate, s.begin, s.end);
        const auto bias = in.bias.values();
        const auto step = [&](auto&& f, const std::vector<double>& x) {
          return complex_step(f, x, weights);
        };
        const auto by_kv = step(
            [&](const Complex& v) {
              return ref::compress(c.ratio, c.overlap, v, to_complex(gate), to_complex(bias));
            },
            kv);
        const auto by_gate = step(
            [&](const Complex& v) {
              return ref::compress(c.ratio, c.overlap, to_complex(kv), v, to_complex(bias));
            },
            gate);
        const auto by_bias = step(
            [&](const Complex& v) {
              return ref::compress(c.ratio, c.overlap, to_complex(kv), to_complex(gate), v);
            },
            bias);
        d_kv.insert(d_kv.end(), by_kv.begin(), by_kv.end());
        d_gate.insert(d_gate.end(), by_gate.begin(), by_gate.end());
        for (size_t i = 0; i < d_bias.size(); ++i) d_bias[i] += by_bias[i];
      }
      const int64_t terms = 40 + compressor_span(c.ratio, c.overlap);
      expect_close_l2(outputs[0], d_kv, terms);
      expect_close_l2(outputs[1], d_gate, terms);
      expect_close_l2(outputs[2], d_bias, terms);
    }
  }
}

// Whatever the pieces, and whatever a fresh state holds.
TEST(Compressor, AnySplitHasTheSameBits) {
  for (const Case& c :
       {Case{{23}, 4, 20, true}, Case{{300}, 128, 20, false}, Case{{17}, 3, 9, true}}) {
    const Inputs in(c);
    CpuBackend backend(choose_cpu_path(), 2);
    const auto whole = segments_of(c);
    Buffer want(kF32, {c.entries(), c.channels});
    compress(backend, in.args(c, whole), want);
    for (const std::vector<int64_t>& pieces :
         {std::vector<int64_t>{1}, {2, 3}, {5, 1, 9}, {130, 1, 2}, {c.tokens()}}) {
      Buffer got(kF32, want.view().shape);
      Buffer state(kF32, {compressor_span(c.ratio, c.overlap), 2, c.width()});
      int64_t done = 0, entry = 0;
      for (size_t i = 0; done < c.tokens(); ++i) {
        const int64_t n = std::min(pieces[i % pieces.size()], c.tokens() - done);
        // The piece stands alone in its batch.
        const std::vector<StateSegment> segments = {
            {.begin = 0, .end = n, .first_position = done, .state = state.view().data}};
        const int64_t count = entries_of(segments[0], c.ratio);
        CompressorArgs args = in.args(c, segments);
        args.kv = args.kv.slice_rows(done, done + n);
        args.gate = args.gate.slice_rows(done, done + n);
        compress(backend, args, got.view().slice_rows(entry, entry + count));
        done += n;
        entry += count;
      }
      expect_same_bits(got, want);
    }
  }
}

}  // namespace
}  // namespace strata::ops
