// SPDX-License-Identifier: Apache-2.0
// Hyper-connections against the double reference: each op, and a whole site's gradient over the
// sizes of gradients at which fused kernels of others overflowed.
#include "ops/hyper_connection.h"

#include "ops/ref/hyper_connection.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

struct Case {
  int64_t tokens, streams, width;
  int steps = 20;
  DType type = kF32;
};

const Case kCases[] = {{0, 4, 16},
                       {1, 4, 16},
                       {5, 4, 37},
                       {9, 3, 20, 7},
                       {7, 1, 5, 1},
                       {3, 8, 17, 3, kBF16},
                       {6, 4, 100, 20, kBF16},
                       {70, 4, 129, 2}};

int64_t numbers(const Case& c) { return 2 * c.streams + c.streams * c.streams; }
ref::HyperShape shape_of(const Case& c) {
  return {.streams = c.streams, .width = c.width, .steps = c.steps};
}

std::vector<double> part(const std::vector<double>& x, int64_t begin, int64_t count) {
  return {x.begin() + begin, x.begin() + begin + count};
}

// What a site reads.
struct Site {
  Buffer x, fn, base, scale;
  explicit Site(const Case& c)
      : x(random_buffer(c.type, {c.tokens, c.streams, c.width}, {.seed = 1})),
        fn(random_buffer(kF32, {numbers(c), c.streams * c.width},
                         {.seed = 2, .scale = 1 / std::sqrt(static_cast<double>(c.width))})),
        base(random_buffer(kF32, {numbers(c)}, {.seed = 3})),
        scale(random_buffer(kF32, {3}, {.seed = 4, .scale = 0.3, .mean = 1})) {}
  [[nodiscard]] TensorView flat() const {
    return x.view().reshape({x.view().shape[0], x.view().shape[1] * x.view().shape[2]});
  }
  [[nodiscard]] std::vector<double> token(const Buffer& from, int64_t t, int64_t width) const {
    return part(from.values(), t * width, width);
  }
};

TEST(HyperConnection, MixAndWeightsMatchReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.width);
    const Site site(c);
    const int64_t r = numbers(c), row = c.streams * c.width;
    const auto outputs = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> out = {Buffer(kF32, {c.tokens, r}), Buffer(kF32, {c.tokens}),
                                 Buffer(kF32, {c.tokens, r})};
      hyper_mix(backend, site.flat(), site.fn, 1e-6f, out[0], out[1]);
      hyper_weights(backend,
                    {.mix = out[0],
                     .base = site.base,
                     .scale = site.scale,
                     .num_streams = c.streams,
                     .steps = c.steps},
                    out[2]);
      return out;
    });
    std::vector<double> mix, sizes, weights;
    for (int64_t t = 0; t < c.tokens; ++t) {
      const auto x = site.token(site.x, t, row);
      const auto token_mix = ref::hyper_mix(shape_of(c), x, site.fn.values());
      mix.insert(mix.end(), token_mix.begin(), token_mix.end());
      // The sum of the terms' magnitudes, by the same function of |fn| and |x|.
      std::vector<double> x_abs = x, fn_abs = site.fn.values();
      for (double& value : x_abs) value = std::abs(value);
      for (double& value : fn_abs) value = std::abs(value);
      const auto size = ref::hyper_mix(shape_of(c), x_abs, fn_abs);
      sizes.insert(sizes.end(), size.begin(), size.end());
      // From the mix as it was rounded: the op works in double.
      const auto w = ref::hyper_weights(shape_of(c), part(outputs[0].values(), t * r, r),
                                        site.base.values(), site.scale.values());
      weights.insert(weights.end(), w.begin(), w.end());
    }
    expect_close(outputs[0], mix, 2 * dot_tolerance(row / 16 + 8, kF32), sizes);
    expect_close(outputs[2], weights, 1.01 * unit_roundoff(kF32));
  }
}

// Doubly stochastic: after the last division the columns sum to one, and the rows nearly.
TEST(HyperConnection, SinkhornEndsOnColumns) {
  const Case c = {40, 4, 8};
  const Site site(c);
  CpuBackend backend(choose_cpu_path(), 2);
  Buffer mix(kF32, {c.tokens, numbers(c)}), inv(kF32, {c.tokens}), w(kF32, {c.tokens, numbers(c)});
  hyper_mix(backend, site.flat(), site.fn, 1e-6f, mix, inv);
  hyper_weights(backend,
                {.mix = mix, .base = site.base, .scale = site.scale, .num_streams = 4, .steps = 20},
                w);
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t i = 0; i < 4; ++i) {
      double row = 0, column = 0;
      for (int64_t j = 0; j < 4; ++j) {
        row += w.get(t * 24 + 8 + i * 4 + j);
        column += w.get(t * 24 + 8 + j * 4 + i);
      }
      EXPECT_NEAR(column, 1, 4e-6);
      EXPECT_NEAR(row, 1, 1e-2);
    }
  }
}

// Comb's rows for its columns.
std::vector<double> turned(std::vector<double> w, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < i; ++j) std::swap(w[2 * n + i * n + j], w[2 * n + j * n + i]);
  }
  return w;
}

std::vector<double> weights_of_others(const Case& c, const Site& site, const Buffer& mix,
                                      double eps, bool transposed) {
  ref::HyperShape shape = shape_of(c);
  shape.eps = eps;
  shape.steps = c.steps;
  const auto n = static_cast<size_t>(c.streams);
  std::vector<double> out;
  for (int64_t t = 0; t < c.tokens; ++t) {
    auto own = part(mix.values(), t * numbers(c), numbers(c)), base = site.base.values();
    // Columns first is rows first of what is turned.
    if (transposed) {
      own = turned(own, n);
      base = turned(base, n);
    }
    auto w = ref::hyper_weights(shape, own, base, site.scale.values());
    if (transposed) w = turned(w, n);
    out.insert(out.end(), w.begin(), w.end());
  }
  return out;
}

// What others had wrong in a site's weights, planted in the reference with an epsilon that shows:
// the bound of MixAndWeightsMatchReference is then missed by more than a hundred times.
TEST(HyperConnectionTraps, WeightsOfOthersShow) {
  constexpr double kEps = 0.01;
  const Case c = {30, 4, 8, 3};
  const Site site(c);
  const int64_t r = numbers(c);
  CpuBackend backend(choose_cpu_path(), 2);
  Buffer mix(kF32, {c.tokens, r}), inv(kF32, {c.tokens}), got(kF32, {c.tokens, r});
  hyper_mix(backend, site.flat(), site.fn, 1e-6f, mix, inv);
  hyper_weights(backend,
                {.mix = mix,
                 .base = site.base,
                 .scale = site.scale,
                 .num_streams = c.streams,
                 .eps = kEps,
                 .steps = c.steps},
                got);
  const auto reference = [&](bool transposed) {
    return weights_of_others(c, site, mix, kEps, transposed);
  };
  const auto limits = [&](const std::vector<double>& want) {
    return relative_l2(got.values(), want) / (1.01 * unit_roundoff(kF32));
  };
  const std::vector<double> right = reference(false);
  EXPECT_LE(limits(right), 1);
  std::vector<double> with_eps = right;
  for (size_t i = 0; i < with_eps.size(); ++i) {
    const auto at = static_cast<int64_t>(i) % r;
    if (at >= c.streams && at < 2 * c.streams) with_eps[i] += kEps;
  }
  EXPECT_GT(limits(with_eps), 100) << "post with an epsilon";
  EXPECT_GT(limits(reference(true)), 100) << "softmax over columns, rows last";
  // One more pass over rows behind the last one over columns.
  std::vector<double> rows_last = right;
  for (size_t m = static_cast<size_t>(2 * c.streams); m < rows_last.size();
       m += static_cast<size_t>(r)) {
    for (int64_t i = 0; i < c.streams; ++i) {
      const auto row = rows_last.begin() + static_cast<int64_t>(m) + i * c.streams;
      double sum = kEps;
      for (int64_t j = 0; j < c.streams; ++j) sum += row[j];
      for (int64_t j = 0; j < c.streams; ++j) row[j] /= sum;
    }
  }
  EXPECT_GT(limits(rows_last), 100) << "the last pass over rows";
  RecordProperty("eps", std::to_string(limits(with_eps)));
  RecordProperty("columns", std::to_string(limits(reference(true))));
  RecordProperty("rows_last", std::to_string(limits(rows_last)));
}

// The gradient of comb's scores [n n], from that of comb, quotient by quotient; each gradient on
// the way goes through `kept`: what a kernel keeps of it.
template <typename Kept>
std::vector<double> sinkhorn_backward(const std::vector<double>& scores, std::vector<double> d,
                                      size_t n, int steps, double eps, const Kept& kept) {
  const auto pass = [n](size_t line, size_t along, const auto& visit) {
    for (size_t i = 0; i < n; ++i) visit([=](size_t k) { return i * line + k * along; });
  };
  std::vector<double> m(n * n);
  pass(n, 1, [&](const auto& at) {
    double most = scores[at(0)], sum = 0;
    for (size_t k = 0; k < n; ++k) most = std::max(most, scores[at(k)]);
    for (size_t k = 0; k < n; ++k) sum += m[at(k)] = std::exp(scores[at(k)] - most);
    for (size_t k = 0; k < n; ++k) m[at(k)] = m[at(k)] / sum;
  });
  const std::vector<double> softmax = m;
  for (double& value : m) value += eps;
  struct Step {
    size_t line, along;
    std::vector<double> sums = {}, quotients = {};
  };
  std::vector<Step> done;
  for (int i = 0; i < 2 * steps - 1; ++i) {
    Step step = i % 2 == 0 ? Step{1, n} : Step{n, 1};
    pass(step.line, step.along, [&](const auto& at) {
      double sum = eps;
      for (size_t k = 0; k < n; ++k) sum += m[at(k)];
      for (size_t k = 0; k < n; ++k) m[at(k)] /= sum;
      step.sums.push_back(sum);
    });
    step.quotients = m;
    done.push_back(std::move(step));
  }
  for (auto step = done.rbegin(); step != done.rend(); ++step) {
    auto sum = step->sums.begin();
    pass(step->line, step->along, [&](const auto& at) {
      double of_all = 0;
      for (size_t k = 0; k < n; ++k) of_all += kept(d[at(k)] * step->quotients[at(k)]);
      for (size_t k = 0; k < n; ++k) d[at(k)] = kept((d[at(k)] - kept(of_all)) / *sum);
      ++sum;
    });
  }
  pass(n, 1, [&](const auto& at) {
    double of_all = 0;
    for (size_t k = 0; k < n; ++k) of_all += d[at(k)] * softmax[at(k)];
    for (size_t k = 0; k < n; ++k) d[at(k)] = softmax[at(k)] * (d[at(k)] - of_all);
  });
  return d;
}

// Others' fused backward overflowed at the gradients of real training, and not at those of a random
// start. Planted: the chain's gradients kept in half precision, whose largest number is 65,504.
TEST(HyperConnectionTraps, AChainOfQuotientsThatOverflowsShows) {
  const Case c = {20, 4, 8};
  const Site site(c);
  const int64_t r = numbers(c), n = c.streams;
  CpuBackend backend(choose_cpu_path(), 2);
  // Wide scores: some columns' first sums are small, and gradients are divided by them.
  Buffer mix = random_buffer(kF32, {c.tokens, r}, {.seed = 9, .scale = 4});
  const HyperWeightsArgs args = {
      .mix = mix, .base = site.base, .scale = site.scale, .num_streams = n, .steps = c.steps};
  const auto half = [](double x) { return std::abs(x) > 65504 ? x / 0.0 : x; };
  for (const double size : {1e-6, 1e-3, 1.0, 1e4}) {
    SCOPED_TRACE("gradients of " + std::to_string(size));
    Buffer g = random_buffer(kF32, {c.tokens, r}, {.seed = 8, .scale = size});
    Buffer d_mix(kF32, {c.tokens, r});
    hyper_weights_backward(backend, args, g, d_mix, {}, {});
    std::vector<double> got, want, planted;
    for (int64_t t = 0; t < c.tokens; ++t) {
      std::vector<double> scores, d;
      for (int64_t i = 2 * n; i < r; ++i) {
        scores.push_back(site.scale.get(2) * mix.get(t * r + i) + site.base.get(i));
        d.push_back(g.get(t * r + i));
        got.push_back(d_mix.get(t * r + i));
      }
      const auto add = [&](std::vector<double>& to, const auto& kept) {
        for (const double x :
             sinkhorn_backward(scores, d, static_cast<size_t>(n), c.steps, args.eps, kept)) {
          to.push_back(x * site.scale.get(2));
        }
      };
      add(want, [](double x) { return x; });
      add(planted, half);
    }
    EXPECT_LE(relative_l2(got, want), 1.01 * unit_roundoff(kF32));
    const bool is_finite = std::ranges::all_of(planted, [](double x) { return std::isfinite(x); });
    EXPECT_EQ(is_finite, size < 1e4);
  }
}

TEST(HyperConnection, CollapseAndExpandMatchReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.width);
    const Site site(c);
    const int64_t r = numbers(c), s = c.streams, d = c.width;
    const Buffer weights = random_buffer(kF32, {c.tokens, r}, {.seed = 5});
    for (const DType out_type : {kF32, kBF16}) {
      const Buffer branch = random_buffer(out_type, {c.tokens, d}, {.seed = 6});
      const auto outputs = run_everywhere([&](Backend& backend) {
        std::vector<Buffer> out = {Buffer(kF32, {c.tokens, d}), Buffer(c.type, {c.tokens, s, d}),
                                   Buffer(kF32, {c.tokens, s, d})};
        hyper_collapse(backend, site.x, weights, out[0]);
        hyper_expand(backend, site.x, branch, weights, out[1]);
        hyper_expand(backend, site.x, branch, weights, out[2]);
        return out;
      });
      std::vector<double> y, expanded, y_size, expanded_size;
      for (int64_t t = 0; t < c.tokens; ++t) {
        const auto w = [&](int64_t i) { return weights.get(t * r + i); };
        const auto x = [&](int64_t i, int64_t h) { return site.x.get((t * s + i) * d + h); };
        for (int64_t h = 0; h < d; ++h) {
          double sum = 0, size = 0;
          for (int64_t i = 0; i < s; ++i) {
            sum += w(i) * x(i, h);
            size += std::abs(w(i) * x(i, h));
          }
          y.push_back(sum);
          y_size.push_back(size);
        }
        for (int64_t j = 0; j < s; ++j) {
          for (int64_t h = 0; h < d; ++h) {
            double sum = w(s + j) * branch.get(t * d + h), size = std::abs(sum);
            for (int64_t i = 0; i < s; ++i) {
              const double term = w(2 * s + i * s + j) * x(i, h);
              sum += term;
              size += std::abs(term);
            }
            expanded.push_back(sum);
            expanded_size.push_back(size);
          }
        }
      }
      expect_close(outputs[0], y, dot_tolerance(s + 1, kF32), y_size);
      expect_close(outputs[1], expanded, dot_tolerance(s + 2, c.type), expanded_size);
      expect_close(outputs[2], expanded, dot_tolerance(s + 2, kF32), expanded_size);
    }
  }
}

// The gradients of everything a site reads, of sum(g x') with out = gain * y, through every op.
struct SiteGradients {
  Buffer d_x, d_fn, d_base, d_scale;
  explicit SiteGradients(const Case& c)
      : d_x(kF32, {c.tokens, c.streams, c.width}),
        d_fn(filled_buffer(kF32, {numbers(c), c.streams * c.width}, 0)),
        d_base(filled_buffer(kF32, {numbers(c)}, 0)),
        d_scale(filled_buffer(kF32, {3}, 0)) {}
};

void site_backward(Backend& backend, const Case& c, const Site& site, const Buffer& gain,
                   const Buffer& g, SiteGradients& to) {
  const int64_t r = numbers(c), s = c.streams, d = c.width;
  Buffer mix(kF32, {c.tokens, r}), inv(kF32, {c.tokens}), w(kF32, {c.tokens, r});
  hyper_mix(backend, site.flat(), site.fn, 1e-6f, mix, inv);
  const HyperWeightsArgs args = {
      .mix = mix, .base = site.base, .scale = site.scale, .num_streams = s, .steps = c.steps};
  hyper_weights(backend, args, w);
  Buffer y(kF32, {c.tokens, d}), d_out(kF32, {c.tokens, d}), d_w(kF32, {c.tokens, r});
  hyper_collapse(backend, site.x, w, y);
  for (int64_t i = 0; i < y.size(); ++i) y.set(i, y.get(i) * gain.get(i % d));
  to.d_x.set_values(g.values());
  hyper_expand_backward(backend, site.x, y, w, to.d_x, d_out, d_w);
  for (int64_t i = 0; i < y.size(); ++i) d_out.set(i, d_out.get(i) * gain.get(i % d));
  hyper_collapse_backward(backend, site.x, w, d_out, to.d_x, d_w);
  Buffer d_mix(kF32, {c.tokens, r});
  hyper_weights_backward(backend, args, d_w, d_mix, to.d_base, to.d_scale);
  hyper_mix_backward(backend, site.flat(), site.fn, mix, inv, d_mix,
                     to.d_x.view().reshape({c.tokens, s * d}), to.d_fn);
}

TEST(HyperConnection, GradientsMatchComplexStepAtEverySize) {
  for (Case c : {Case{2, 4, 5, 20}, Case{3, 3, 6, 7}, Case{2, 4, 17, 1}}) {
    for (const double size : {1e-6, 1e-3, 1.0, 1e4}) {
      SCOPED_TRACE(std::to_string(c.width) + ", gradients of " + std::to_string(size));
      const Site site(c);
      const int64_t row = c.streams * c.width;
      const Buffer gain = random_buffer(kF32, {c.width}, {.seed = 7});
      const Buffer g = random_buffer(kF32, site.x.view().shape, {.seed = 8, .scale = size});
      const auto outputs = run_everywhere([&](Backend& backend) {
        SiteGradients to(c);
        site_backward(backend, c, site, gain, g, to);
        return std::vector<Buffer>{to.d_x, to.d_fn, to.d_base, to.d_scale};
      });
      using Complex = std::vector<std::complex<double>>;
      std::vector<double> d_x, d_fn(static_cast<size_t>(site.fn.size())),
          d_base(static_cast<size_t>(site.base.size())), d_scale(3);
      const auto add = [](std::vector<double>& to, const std::vector<double>& from) {
        for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
      };
      const Complex fn = to_complex(site.fn.values()), base = to_complex(site.base.values()),
                    scale = to_complex(site.scale.values()), gains = to_complex(gain.values());
      for (int64_t t = 0; t < c.tokens; ++t) {
        const Complex x = to_complex(site.token(site.x, t, row));
        const auto weights = site.token(g, t, row);
        const auto shape = shape_of(c);
        const auto by_x = complex_step(
            [&](const Complex& v) {
              return ref::hyper_collapse_and_expand(shape, v, fn, base, scale, gains);
            },
            site.token(site.x, t, row), weights);
        d_x.insert(d_x.end(), by_x.begin(), by_x.end());
        add(d_fn, complex_step(
                      [&](const Complex& v) {
                        return ref::hyper_collapse_and_expand(shape, x, v, base, scale, gains);
                      },
                      site.fn.values(), weights));
        add(d_base, complex_step(
                        [&](const Complex& v) {
                          return ref::hyper_collapse_and_expand(shape, x, fn, v, scale, gains);
                        },
                        site.base.values(), weights));
        add(d_scale, complex_step(
                         [&](const Complex& v) {
                           return ref::hyper_collapse_and_expand(shape, x, fn, base, v, gains);
                         },
                         site.scale.values(), weights));
      }
      // Chains of at most S D R terms, and of Sinkhorn's weights, rounded once.
      const int64_t terms = row * numbers(c);
      expect_close_l2(outputs[0], d_x, terms);
      expect_close_l2(outputs[1], d_fn, terms);
      expect_close_l2(outputs[2], d_base, terms);
      expect_close_l2(outputs[3], d_scale, terms);
    }
  }
}

// Gradients of parameters continue from what is stored, token after token.
TEST(HyperConnection, ParameterGradientsDoNotDependOnTheSplit) {
  const Case c = {9, 4, 20};
  const Site site(c);
  CpuBackend backend(choose_cpu_path(), 2);
  const Buffer gain = random_buffer(kF32, {c.width}, {.seed = 7});
  const Buffer g = random_buffer(kF32, site.x.view().shape, {.seed = 8});
  SiteGradients whole(c), parts(c);
  site_backward(backend, c, site, gain, g, whole);
  for (const auto& [begin, end] : {std::pair{0, 4}, std::pair{4, 9}}) {
    Case piece = c;
    piece.tokens = end - begin;
    Site some(piece);
    Buffer some_g(kF32, some.x.view().shape);
    const int64_t row = c.streams * c.width;
    some.x.set_values(part(site.x.values(), begin * row, piece.tokens * row));
    some_g.set_values(part(g.values(), begin * row, piece.tokens * row));
    SiteGradients to(piece);
    to.d_fn.set_values(parts.d_fn.values());
    to.d_base.set_values(parts.d_base.values());
    to.d_scale.set_values(parts.d_scale.values());
    site_backward(backend, piece, some, gain, some_g, to);
    parts.d_fn.set_values(to.d_fn.values());
    parts.d_base.set_values(to.d_base.values());
    parts.d_scale.set_values(to.d_scale.values());
  }
  expect_same_bits(parts.d_fn, whole.d_fn);
  expect_same_bits(parts.d_base, whole.d_base);
  expect_same_bits(parts.d_scale, whole.d_scale);
}

// The head's form: weights of the input alone.
TEST(HyperConnection, HeadHasOnePart) {
  const Case c = {6, 4, 11};
  const Site site(c);
  const Buffer fn = random_buffer(kF32, {4, 44}, {.seed = 12, .scale = 0.3});
  const Buffer base = random_buffer(kF32, {4}, {.seed = 13});
  const Buffer scale = filled_buffer(kF32, {1}, 0.7);
  const Buffer d_w = random_buffer(kF32, {c.tokens, 4}, {.seed = 14});
  const auto outputs = run_everywhere([&](Backend& backend) {
    std::vector<Buffer> out = {Buffer(kF32, {c.tokens, 4}), Buffer(kF32, {c.tokens}),
                               Buffer(kF32, {c.tokens, 4}), Buffer(kF32, {c.tokens, 4}),
                               filled_buffer(kF32, {1}, 0)};
    hyper_mix(backend, site.flat(), fn, 1e-6f, out[0], out[1]);
    const HyperWeightsArgs args = {.mix = out[0], .base = base, .scale = scale, .num_streams = 4};
    hyper_weights(backend, args, out[2]);
    hyper_weights_backward(backend, args, d_w, out[3], {}, out[4]);
    return out;
  });
  std::vector<double> want, d_mix;
  double d_scale = 0;
  for (int64_t i = 0; i < outputs[0].size(); ++i) {
    const double mix = outputs[0].get(i);
    const double p = ref::hyper_sigmoid(mix * scale.get(0) + base.get(i % 4));
    want.push_back(p + 1e-6);
    const double d_z = d_w.get(i) * p * (1 - p);
    d_mix.push_back(d_z * scale.get(0));
    d_scale += d_z * mix;
  }
  expect_close(outputs[2], want, 1.01 * unit_roundoff(kF32));
  expect_close(outputs[3], d_mix, 4 * unit_roundoff(kF32));
  EXPECT_NEAR(outputs[4].get(0), d_scale, 24 * 4 * unit_roundoff(kF32));
}

}  // namespace
}  // namespace strata::ops
