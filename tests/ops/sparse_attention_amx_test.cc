// SPDX-License-Identifier: Apache-2.0
// Sparse attention of the path amx: its engines and threads have equal bits, one query at a time
// has those of the whole, and the gradients are the groups of the path's oracle.
#include "ops/cpu/sparse_attention.h"
#include "ops/ref/amx_product.h"
#include "tests/ops/amx_engines.h"
#include "tests/ops/indices.h"

namespace strata::ops::testing {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

struct Case {
  int64_t length, heads, width, window;
  int64_t ratio = 0;
  int64_t top_k = 0;
  [[nodiscard]] int64_t entries() const { return ratio == 0 ? 0 : length / ratio; }
  [[nodiscard]] std::string name() const {
    return std::to_string(length) + " tokens, heads " + std::to_string(heads) + ", width " +
           std::to_string(width) + ", window " + std::to_string(window);
  }
};

const Case kCases[] = {{1, 1, 1, 1},        {30, 3, 20, 8},      {70, 7, 33, 64, 4},
                       {75, 40, 32, 35, 2}, {150, 2, 48, 40, 1}, {90, 5, 130, 17, 1, 50},
                       {40, 130, 16, 40, 8}};

// A sequence from position 0, twice: the second of half the length.
struct Batch {
  Case c;
  int64_t tokens;
  Buffer q, keys, entries, sinks, d_out;
  std::vector<KvRange> ranges;
  std::vector<SparseSegment> segments;
  std::vector<int32_t> selected;

  Batch(const Case& of, bool tiny)
      : c(of),
        tokens(of.length + of.length / 2),
        q(random_buffer(kBF16, {tokens, of.heads, of.width}, {.seed = 1, .scale = 1.5})),
        keys(wide_buffer(kBF16, {tokens, of.width}, 2, tiny ? 120 : 0)),
        entries(wide_buffer(kBF16, {2 * of.entries(), of.width}, 3, tiny ? 120 : 0)),
        sinks(random_buffer(kF32, {of.heads}, {.seed = 4})),
        d_out(wide_buffer(kBF16, {tokens, of.heads, of.width}, 5, tiny ? 120 : 0)) {
    ranges.reserve(4);
    int64_t begin = 0;
    for (const int64_t length : {c.length, c.length / 2}) {
      void* rows = keys.view().row(begin);
      const int64_t first_entry = begin == 0 ? 0 : c.entries();
      ranges.push_back({rows, rows, 0, length});
      const std::span<const KvRange> window(&ranges.back(), 1);
      std::span<const KvRange> seen;
      const int64_t num_entries = c.ratio == 0 ? 0 : length / c.ratio;
      if (num_entries > 0) {
        void* first = entries.view().row(first_entry);
        ranges.push_back({first, first, 0, num_entries});
        seen = {&ranges.back(), 1};
      }
      segments.push_back({.begin = begin,
                          .end = begin + length,
                          .window = {window, c.width},
                          .entries = {seen, c.width},
                          .first_entry = first_entry});
      for (int64_t t = 0; t < length && c.top_k > 0; ++t) list_entries(t);
      begin += length;
    }
  }
  // The last top_k entries that a query may see.
  void list_entries(int64_t position) {
    const int64_t seen = (position + 1) / c.ratio;
    const int64_t first = std::max<int64_t>(0, seen - c.top_k);
    for (int64_t k = 0; k < c.top_k; ++k) {
      selected.push_back(first + k < seen ? static_cast<int32_t>(first + k) : -1);
    }
  }
  [[nodiscard]] SparseAttentionArgs args() const {
    return {.q = q,
            .sinks = sinks,
            .segments = segments,
            .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.width))),
            .window = c.window,
            .ratio = c.ratio,
            .selected = c.top_k > 0 ? indices(selected) : IndexView<int32_t>(),
            .top_k = c.top_k};
  }
};

std::vector<Buffer> forward(const cpu::AttentionKernels& kernels, const Batch& batch, int threads) {
  CpuBackend backend(choose_cpu_path(), threads);
  std::vector<Buffer> result;
  result.emplace_back(kBF16, batch.q.view().shape);
  result.emplace_back(kF32, Shape{batch.tokens, batch.c.heads});
  cpu::sparse_attention_tiled(backend, kernels, batch.args(), result[0], result[1]);
  return result;
}

// d_q, d_keys, d_entries and delta.
std::vector<Buffer> backward(const cpu::AttentionKernels& kernels, const Batch& batch,
                             const Buffer& out, const Buffer& lse, int threads) {
  CpuBackend backend(choose_cpu_path(), threads);
  std::vector<Buffer> result;
  result.emplace_back(kF32, batch.q.view().shape);
  result.push_back(filled_buffer(kF32, batch.keys.view().shape, 0));
  result.push_back(filled_buffer(kF32, batch.entries.view().shape, 0));
  result.emplace_back(kF32, Shape{batch.tokens, batch.c.heads});
  const SparseGradients grads{.out = out,
                              .lse = lse,
                              .d_out = batch.d_out,
                              .d_q = result[0],
                              .d_keys = result[1],
                              .d_entries = result[2]};
  cpu::sparse_attention_backward_tiled(backend, kernels, batch.args(), grads, result[3]);
  return result;
}

void expect_same(const std::vector<Buffer>& got, const std::vector<Buffer>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE("output " + std::to_string(i));
    expect_same_bits(got[i], want[i]);
  }
}

// Calls body(batch) with values of one size and with values whose products leave the normal
// numbers.
template <typename Body>
void for_each_batch(Body&& body) {
  for (const Case& c : kCases) {
    for (const bool tiny : {false, true}) {
      SCOPED_TRACE(c.name() + (tiny ? ", tiny" : ""));
      body(Batch(c, tiny));
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(SparseAttentionAmx, EnginesAndThreadsHaveEqualBits) {
  for_each_batch([](const Batch& batch) {
    std::vector<Buffer> want, want_grads;
    for (const AmxEngine& engine : amx_engines()) {
      for (const int threads : {1, 2}) {
        SCOPED_TRACE(engine.name + ", threads " + std::to_string(threads));
        const auto got = forward(*engine.kernels, batch, threads);
        const auto grads = backward(*engine.kernels, batch, got[0], got[1], threads);
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

TEST(SparseAttentionAmx, OneQueryAtATimeHasTheBitsOfTheWhole) {
  for_each_batch([](const Batch& batch) {
    for (const AmxEngine& engine : amx_engines()) {
      SCOPED_TRACE(engine.name);
      const auto want = forward(*engine.kernels, batch, 2);
      std::vector<Buffer> got;
      for (const Buffer& x : want) got.emplace_back(x.view().dtype, x.view().shape);
      CpuBackend backend(choose_cpu_path(), 2);
      for (SparseSegment s : batch.segments) {
        for (const int64_t end = s.end; s.begin < end; ++s.begin, ++s.first_position) {
          s.end = s.begin + 1;
          SparseAttentionArgs args = batch.args();
          args.segments = {&s, 1};
          cpu::sparse_attention_tiled(backend, *engine.kernels, args, got[0], got[1]);
        }
      }
      expect_same(got, want);
    }
  });
}

// Where every probability is one (queries of zero, an lse of zero) and delta is zero (an out of
// zero), the products alone decide every bit. Without entries and without a window.
class OnesOracle {
 public:
  explicit OnesOracle(const Batch& batch) : c_(batch.c), batch_(batch) {}

  void fill(float* d_q, float* d_keys) const {
    for (const SparseSegment& s : batch_.segments) {
      for (int64_t t = s.begin; t < s.end; ++t) fill_query(t, s.begin, d_q, d_keys);
    }
  }

 private:
  void fill_query(int64_t t, int64_t begin, float* d_q, float* d_keys) const {
    const int64_t num_keys = t - begin + 1;
    const Bf16* keys = batch_.keys.view().bf16() + begin * c_.width;
    const Bf16* d_out = batch_.d_out.view().bf16() + t * c_.heads * c_.width;
    std::vector<Bf16> d_s(static_cast<size_t>(c_.heads * num_keys));
    for (int64_t n = 0; n < c_.heads; ++n) {
      for (int64_t j = 0; j < num_keys; ++j) {
        d_s[static_cast<size_t>(n * num_keys + j)] =
            to_bf16(ref::add_product(0, d_out + n * c_.width, 1, keys + j * c_.width, 1, c_.width));
      }
    }
    const float scale = batch_.args().scale;
    for (int64_t n = 0; n < c_.heads; ++n) {
      for (int64_t h = 0; h < c_.width; ++h) {
        const float sum =
            ref::add_product(0, d_s.data() + n * num_keys, 1, keys + h, c_.width, num_keys);
        d_q[(t * c_.heads + n) * c_.width + h] = sum * scale + 0.0f;
      }
    }
    // Queries of zero add nothing but dS q = 0, so that P d_out is all.
    const std::vector<Bf16> ones(static_cast<size_t>(c_.heads), to_bf16(1.0f));
    for (int64_t j = 0; j < num_keys; ++j) {
      for (int64_t h = 0; h < c_.width; ++h) {
        d_keys[(begin + j) * c_.width + h] +=
            ref::add_product(0, ones.data(), 1, d_out + h, c_.width, c_.heads);
      }
    }
  }

  const Case& c_;
  const Batch& batch_;
};

TEST(SparseAttentionAmx, GradientsAreTheOraclesGroups) {
  for (const Case& c : {Case{70, 7, 33, 100}, Case{100, 37, 20, 100}}) {
    for (const bool tiny : {false, true}) {
      SCOPED_TRACE(c.name());
      Batch batch(c, tiny);
      batch.q.set_values(std::vector<double>(static_cast<size_t>(batch.q.size())));
      const Buffer out = filled_buffer(kBF16, batch.q.view().shape, 0);
      const Buffer lse = filled_buffer(kF32, {batch.tokens, c.heads}, 0);
      const Buffer d_q(kF32, batch.q.view().shape);
      const Buffer d_keys = filled_buffer(kF32, batch.keys.view().shape, 0);
      OnesOracle(batch).fill(d_q.view().f32(), d_keys.view().f32());
      for (const AmxEngine& engine : amx_engines()) {
        SCOPED_TRACE(engine.name);
        const auto got = backward(*engine.kernels, batch, out, lse, 2);
        expect_same_bits(got[0], d_q);
        expect_same_bits(got[1], d_keys);
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops::testing
