// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4's attention against the double reference: windows, entries, lists of entries, sinks;
// gradients by the complex step; and that decode, chunks and pages have the bits of one pass.
#include "ops/sparse_attention.h"

#include "ops/ref/sparse_attention.h"
#include "tests/ops/indices.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

struct Case {
  std::vector<int64_t> lengths;
  int64_t heads, width, window;
  int64_t ratio = 0;
  int64_t top_k = 0;
  DType type = kF32;
  [[nodiscard]] int64_t tokens() const {
    int64_t sum = 0;
    for (const int64_t n : lengths) sum += n;
    return sum;
  }
  [[nodiscard]] int64_t entries_of(int64_t n) const { return ratio == 0 ? 0 : n / ratio; }
  [[nodiscard]] int64_t entries() const {
    int64_t sum = 0;
    for (const int64_t n : lengths) sum += entries_of(n);
    return sum;
  }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(width)); }
};

const Case kCases[] = {{{}, 2, 16, 4},
                       {{1}, 1, 1, 1},
                       {{9, 1, 30}, 3, 20, 8},
                       {{70, 3}, 7, 17, 64, 4},
                       {{41, 7, 130}, 4, 32, 8, 2, 5},
                       {{150, 20}, 2, 48, 40, 1, 70},
                       {{33, 8}, 5, 24, 5, 3, 2, kBF16},
                       {{140}, 3, 40, 128, 8, 0, kBF16}};

std::string name_of(const Case& c) {
  return std::to_string(c.tokens()) + " tokens, window " + std::to_string(c.window) + ", ratio " +
         std::to_string(c.ratio);
}

// Entries that a query lists: every third, from the first on.
std::vector<int32_t> list_of(const Case& c, int64_t position) {
  const int64_t seen = c.ratio == 0 ? 0 : (position + 1) / c.ratio;
  std::vector<int32_t> ids;
  if (seen <= c.top_k) {
    for (int64_t i = 0; i < seen; ++i) ids.push_back(static_cast<int32_t>(i));
  } else {
    for (int64_t i = 0; i < c.top_k; ++i) {
      ids.push_back(static_cast<int32_t>(i * seen / c.top_k));
    }
  }
  ids.resize(static_cast<size_t>(c.top_k), -1);
  return ids;
}

// A batch of whole sequences.
struct Batch {
  Case c;
  Buffer q, keys, entries, sinks;
  std::vector<KvRange> ranges;
  std::vector<SparseSegment> segments;
  std::vector<int32_t> selected;

  explicit Batch(const Case& of)
      : c(of),
        q(random_buffer(c.type, {c.tokens(), c.heads, c.width}, {.seed = 1, .scale = 1.5})),
        keys(random_buffer(c.type, {c.tokens(), c.width}, {.seed = 2})),
        entries(random_buffer(c.type, {c.entries(), c.width}, {.seed = 3})),
        sinks(random_buffer(kF32, {c.heads}, {.seed = 4})) {
    int64_t begin = 0, entry = 0;
    ranges.reserve(2 * c.lengths.size());
    for (const int64_t n : c.lengths) {
      void* rows = keys.view().row(begin);
      ranges.push_back({rows, rows, 0, n});
      const std::span<const KvRange> window(&ranges.back(), 1);
      std::span<const KvRange> seen;
      if (c.entries_of(n) > 0) {
        void* first = entries.view().row(entry);
        ranges.push_back({first, first, 0, c.entries_of(n)});
        seen = {&ranges.back(), 1};
      }
      segments.push_back({.begin = begin,
                          .end = begin + n,
                          .window = {window, c.width},
                          .entries = {seen, c.width},
                          .first_entry = entry});
      for (int64_t t = 0; t < n && c.top_k > 0; ++t) {
        const auto ids = list_of(c, t);
        selected.insert(selected.end(), ids.begin(), ids.end());
      }
      begin += n;
      entry += c.entries_of(n);
    }
  }
  [[nodiscard]] SparseAttentionArgs args() const {
    return {.q = q,
            .sinks = sinks,
            .segments = segments,
            .scale = static_cast<float>(c.scale()),
            .window = c.window,
            .ratio = c.ratio,
            .selected = indices(selected),
            .top_k = c.top_k};
  }
  // Rows of keys (and from tokens() on, of entries) that token `t` of segment s sees.
  [[nodiscard]] std::vector<int64_t> seen_by(const SparseSegment& s, int64_t t) const {
    std::vector<int64_t> rows;
    for (int64_t j = std::max<int64_t>(0, t - c.window + 1); j <= t; ++j) {
      rows.push_back(s.begin + j);
    }
    if (c.ratio == 0) return rows;
    if (c.top_k == 0) {
      for (int64_t i = 0; i < (t + 1) / c.ratio; ++i) {
        rows.push_back(c.tokens() + s.first_entry + i);
      }
      return rows;
    }
    for (const int32_t id : list_of(c, t)) {
      if (id >= 0) rows.push_back(c.tokens() + s.first_entry + id);
    }
    return rows;
  }
  [[nodiscard]] std::vector<double> key(int64_t row) const {
    std::vector<double> out;
    const Buffer& from = row < c.tokens() ? keys : entries;
    const int64_t at = row < c.tokens() ? row : row - c.tokens();
    for (int64_t h = 0; h < c.width; ++h) out.push_back(from.get(at * c.width + h));
    return out;
  }
  // Calls body(flat row of [T, N], q, keys, their rows, sink).
  template <typename Body>
  void for_rows(Body&& body) const {
    for (const SparseSegment& s : segments) {
      for (int64_t t = 0; t < s.end - s.begin; ++t) {
        const auto rows = seen_by(s, t);
        std::vector<double> seen;
        for (const int64_t row : rows) {
          const auto of = key(row);
          seen.insert(seen.end(), of.begin(), of.end());
        }
        for (int64_t n = 0; n < c.heads; ++n) {
          const int64_t at = (s.begin + t) * c.heads + n;
          std::vector<double> query;
          for (int64_t h = 0; h < c.width; ++h) query.push_back(q.get(at * c.width + h));
          body(at, query, seen, rows, sinks.get(n));
        }
      }
    }
  }
};

// Results of a path are compared with the reference; bits with those of other threads.
template <typename Op>
void on_paths(Op&& op) {
  for (const CpuPath path : supported_paths()) {
    SCOPED_TRACE(std::string(cpu_path_name(path)));
    CpuBackend one(path, 1);
    const std::vector<Buffer> want = op(one);
    for (const int threads : {2, 7}) {
      CpuBackend backend(path, threads);
      const std::vector<Buffer> got = op(backend);
      for (size_t i = 0; i < want.size(); ++i) expect_same_bits(got[i], want[i]);
    }
  }
}

// bf16 rounds probabilities, results and in backward dS: three roundings of the type.
double tolerance(const Case& c, int64_t terms) {
  return l2_tolerance(terms, kF32) + (c.type == kBF16 ? 3 * unit_roundoff(kBF16) : 0);
}

TEST(SparseAttention, ForwardMatchesReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    const Batch batch(c);
    std::vector<double> want, lse;
    batch.for_rows([&](int64_t, const auto& q, const auto& keys, const auto&, double sink) {
      const auto out = ref::sparse_attention(q, keys, sink, c.scale());
      want.insert(want.end(), out.begin(), out.end());
      double sum = std::exp(sink);
      for (size_t j = 0; j < keys.size() / q.size(); ++j) {
        double score = 0;
        for (size_t h = 0; h < q.size(); ++h) score += q[h] * keys[j * q.size() + h];
        sum += std::exp(score * c.scale());
      }
      lse.push_back(std::log(sum));
    });
    on_paths([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(c.type, batch.q.view().shape),
                                 Buffer(kF32, {c.tokens(), c.heads})};
      sparse_attention(backend, batch.args(), out[0], out[1]);
      EXPECT_LE(relative_l2(out[0].values(), want), tolerance(c, c.width + 200));
      EXPECT_LE(relative_l2(out[1].values(), lse), l2_tolerance(c.width + 200, kF32));
      return out;
    });
  }
}

TEST(SparseAttention, BackwardMatchesComplexStep) {
  for (const Case& c : kCases) {
    if (c.tokens() > 60) continue;
    SCOPED_TRACE(name_of(c));
    const Batch batch(c);
    const Buffer d_out = random_buffer(c.type, batch.q.view().shape, {.seed = 7});
    std::vector<double> d_q, d_rows(static_cast<size_t>((c.tokens() + c.entries()) * c.width)),
        d_sinks(static_cast<size_t>(c.heads));
    using Complex = std::vector<std::complex<double>>;
    batch.for_rows([&](int64_t at, const auto& q, const auto& keys, const auto& rows, double sink) {
      std::vector<double> weights;
      for (int64_t h = 0; h < c.width; ++h) weights.push_back(d_out.get(at * c.width + h));
      const Complex q_c = to_complex(q), keys_c = to_complex(keys);
      const std::complex<double> sink_c = sink;
      const auto by_q = complex_step(
          [&](const Complex& v) { return ref::sparse_attention(v, keys_c, sink_c, c.scale()); }, q,
          weights);
      d_q.insert(d_q.end(), by_q.begin(), by_q.end());
      const auto by_keys = complex_step(
          [&](const Complex& v) { return ref::sparse_attention(q_c, v, sink_c, c.scale()); }, keys,
          weights);
      for (size_t i = 0; i < by_keys.size(); ++i) {
        const size_t row = static_cast<size_t>(rows[i / q.size()]);
        d_rows[row * q.size() + i % q.size()] += by_keys[i];
      }
      d_sinks[static_cast<size_t>(at % c.heads)] += complex_step(
          [&](const Complex& v) { return ref::sparse_attention(q_c, keys_c, v[0], c.scale()); },
          {sink}, weights)[0];
    });
    const auto middle = d_rows.begin() + c.tokens() * c.width;
    const std::vector<double> d_keys(d_rows.begin(), middle), d_entries(middle, d_rows.end());
    for (const DType d_q_type : {kF32, kBF16}) {
      on_paths([&](Backend& backend) {
        Buffer out(c.type, batch.q.view().shape), lse(kF32, {c.tokens(), c.heads});
        sparse_attention(backend, batch.args(), out, lse);
        std::vector<Buffer> got = {
            Buffer(d_q_type, batch.q.view().shape), Buffer(kF32, {c.tokens(), c.width}),
            Buffer(kF32, {c.entries(), c.width}), filled_buffer(kF32, {c.heads}, 0)};
        sparse_attention_backward(backend, batch.args(), out, lse, d_out, got[0], got[1],
                                  c.entries() == 0 ? TensorView() : got[2].view(), got[3]);
        if (c.entries() == 0) got[2].set_values({});
        // Differences of terms of this size: delta cancels about a third.
        const double limit = 4 * tolerance(c, c.width + 200);
        EXPECT_LE(relative_l2(got[0].values(), d_q), limit + unit_roundoff(d_q_type));
        EXPECT_LE(relative_l2(got[1].values(), d_keys), limit);
        EXPECT_LE(relative_l2(got[2].values(), d_entries), limit);
        EXPECT_LE(relative_l2(got[3].values(), d_sinks), limit);
        return got;
      });
    }
  }
}

// One row at a time, keys in a ring of pages of one row, entries likewise.
TEST(SparseAttention, DecodeHasTheBitsOfOnePass) {
  for (const Case& c : kCases) {
    if (c.lengths.empty()) continue;
    SCOPED_TRACE(name_of(c));
    const Batch batch(c);
    on_paths([&](Backend& backend) {
      Buffer want(c.type, batch.q.view().shape), lse(kF32, {c.tokens(), c.heads});
      sparse_attention(backend, batch.args(), want, lse);
      std::vector<Buffer> got = {Buffer(c.type, want.view().shape), Buffer(kF32, lse.view().shape)};
      for (const SparseSegment& s : batch.segments) {
        for (int64_t t = 0; t < s.end - s.begin; ++t) {
          std::vector<KvRange> window, entries;
          for (int64_t j = std::max<int64_t>(0, t - c.window + 1); j <= t; ++j) {
            void* row = batch.keys.view().row(s.begin + j);
            window.push_back({row, row, j, j + 1});
          }
          for (int64_t i = 0; i < (c.ratio == 0 ? 0 : (t + 1) / c.ratio); ++i) {
            void* row = batch.entries.view().row(s.first_entry + i);
            entries.push_back({row, row, i, i + 1});
          }
          const SparseSegment one = {.begin = 0,
                                     .end = 1,
                                     .first_position = t,
                                     .window = {window, 0},
                                     .entries = {entries, 0}};
          SparseAttentionArgs args = batch.args();
          const auto row = [&](TensorView x) { return x.slice_rows(s.begin + t, s.begin + t + 1); };
          const auto heads = [&](TensorView x) {
            return x.slice_rows((s.begin + t) * c.heads, (s.begin + t + 1) * c.heads)
                .reshape({1, c.heads, c.width});
          };
          args.q = heads(batch.q);
          args.segments = {&one, 1};
          const auto ids = list_of(c, t);
          if (c.top_k > 0) args.selected = indices(ids);
          sparse_attention(backend, args, heads(got[0]), row(got[1]));
        }
      }
      expect_same_bits(got[0], want);
      expect_same_bits(got[1], lse);
      return got;
    });
  }
}

}  // namespace
}  // namespace strata::ops
