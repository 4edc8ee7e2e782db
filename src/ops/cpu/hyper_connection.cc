// SPDX-License-Identifier: Apache-2.0
// T tokens, S streams, D model width, R numbers a token.
#include "ops/cpu/hyper_connection.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {
namespace {

// streams [T, S, D] with weights [T, R], or with fn [R, S D], where S is left open.
HyperKernel kernel_args_of(const TensorView& streams, const TensorView& weights) {
  const int64_t num_streams = streams.shape[1];
  return {.num_streams = num_streams,
          .width = streams.shape[2],
          .row = num_streams * streams.shape[2],
          .numbers = weights.cols(),
          .type = streams.dtype,
          .x = streams.data,
          .fn = nullptr,
          .weights = weights.f32()};
}

HyperKernel mix_kernel_args_of(const TensorView& streams, const TensorView& fn) {
  return {.num_streams = 1,
          .width = streams.cols(),
          .row = streams.cols(),
          .numbers = fn.rows(),
          .type = streams.dtype,
          .x = streams.data,
          .fn = fn.f32(),
          .weights = nullptr};
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Sinkhorn of one token, with all its states: a division of all rows or all columns of an S x S
// matrix each.
struct Sinkhorn {
  static constexpr int64_t kMost = kMaxStreams * kMaxStreams;
  int64_t n;
  double eps;
  int steps;
  double softmax[kMost];
  double states[2 * kMaxSinkhornSteps][kMost];

  explicit Sinkhorn(const HyperWeightsArgs& args)
      : n(args.num_streams), eps(args.eps), steps(args.steps) {}

  [[nodiscard]] int num_divisions() const { return 2 * steps - 1; }
  // Divisions 0, 2, ... are of columns, the others of rows.
  [[nodiscard]] int64_t group_stride(int division) const { return division % 2 == 0 ? 1 : n; }
  [[nodiscard]] int64_t element_stride(int division) const { return division % 2 == 0 ? n : 1; }
  [[nodiscard]] const double* result() const { return states[num_divisions()]; }

  // logits [S, S]
  void forward(const double* logits) {
    start_from_softmax(logits);
    for (int division = 0; division < num_divisions(); ++division) divide(division);
  }

  void start_from_softmax(const double* logits) {
    for (int64_t i = 0; i < n; ++i) {
      const double* row = logits + i * n;
      double largest = row[0];
      for (int64_t j = 1; j < n; ++j) largest = std::max(largest, row[j]);
      double sum = 0.0;
      for (int64_t j = 0; j < n; ++j) sum += std::exp(row[j] - largest);
      for (int64_t j = 0; j < n; ++j) {
        softmax[i * n + j] = std::exp(row[j] - largest) / sum;
        states[0][i * n + j] = softmax[i * n + j] + eps;
      }
    }
  }

  void divide(int division) {
    for (int64_t g = 0; g < n; ++g) {
      const int64_t first = g * group_stride(division);
      const double sum = divisor(division, first);
      for (int64_t k = 0; k < n; ++k) {
        const int64_t at = first + k * element_stride(division);
        states[division + 1][at] = states[division][at] / sum;
      }
    }
  }

  [[nodiscard]] double divisor(int division, int64_t first) const {
    double sum = eps;
    for (int64_t k = 0; k < n; ++k) sum += states[division][first + k * element_stride(division)];
    return sum;
  }

  // d [S, S]: of the result on entry, of the logits on return.
  void backward(double* d) const {
    for (int division = num_divisions() - 1; division >= 0; --division) {
      divide_backward(division, d);
    }
    softmax_backward(d);
  }

  // N = M / (sum(M) + eps): d_M = (d_N - sum(d_N N)) / (sum(M) + eps)
  void divide_backward(int division, double* d) const {
    for (int64_t g = 0; g < n; ++g) {
      const int64_t first = g * group_stride(division);
      double dot = 0.0;
      for (int64_t k = 0; k < n; ++k) {
        const int64_t at = first + k * element_stride(division);
        dot += d[at] * states[division + 1][at];
      }
      const double sum = divisor(division, first);
      for (int64_t k = 0; k < n; ++k) {
        const int64_t at = first + k * element_stride(division);
        d[at] = (d[at] - dot) / sum;
      }
    }
  }

  void softmax_backward(double* d) const {
    for (int64_t i = 0; i < n; ++i) {
      double dot = 0.0;
      for (int64_t j = 0; j < n; ++j) dot += d[i * n + j] * softmax[i * n + j];
      for (int64_t j = 0; j < n; ++j) d[i * n + j] = softmax[i * n + j] * (d[i * n + j] - dot);
    }
  }
};

// Which scale a token's number r is multiplied by.
int64_t scale_index_of(int64_t num_streams, int64_t r) {
  return r < num_streams ? 0 : r < 2 * num_streams ? 1 : 2;
}

// What the three parts' sigmoids and Sinkhorn are taken of, [R].
void compute_pre_activations(const HyperWeightsArgs& args, int64_t token, double* z) {
  for (int64_t r = 0; r < args.mix.cols(); ++r) {
    z[r] = static_cast<double>(args.mix.f32()[token * args.mix.cols() + r]) *
               static_cast<double>(args.scale.f32()[scale_index_of(args.num_streams, r)]) +
           static_cast<double>(args.base.f32()[r]);
  }
}

constexpr int64_t kMaxNumbers = 2 * kMaxStreams + kMaxStreams * kMaxStreams;

void write_token_weights(const HyperWeightsArgs& args, int64_t token, float* weights) {
  const int64_t n = args.num_streams;
  double z[kMaxNumbers];
  compute_pre_activations(args, token, z);
  for (int64_t i = 0; i < n; ++i) weights[i] = static_cast<float>(sigmoid(z[i]) + args.eps);
  if (!args.has_output()) return;
  for (int64_t i = n; i < 2 * n; ++i) weights[i] = static_cast<float>(2.0 * sigmoid(z[i]));
  Sinkhorn sinkhorn(args);
  sinkhorn.forward(z + 2 * n);
  for (int64_t i = 0; i < n * n; ++i) {
    weights[2 * n + i] = static_cast<float>(sinkhorn.result()[i]);
  }
}

// d z [R] of one token.
void compute_token_d_z(const HyperWeightsArgs& args, int64_t token, const float* d_weights,
                       double* d_z) {
  const int64_t n = args.num_streams;
  double z[kMaxNumbers];
  compute_pre_activations(args, token, z);
  const int64_t num_sigmoids = args.has_output() ? 2 * n : n;
  for (int64_t i = 0; i < num_sigmoids; ++i) {
    const double factor = i < n ? 1.0 : 2.0;
    d_z[i] = factor * static_cast<double>(d_weights[i]) * sigmoid(z[i]) * sigmoid(-z[i]);
  }
  if (!args.has_output()) return;
  Sinkhorn sinkhorn(args);
  sinkhorn.forward(z + 2 * n);
  for (int64_t i = 2 * n; i < args.mix.cols(); ++i) d_z[i] = static_cast<double>(d_weights[i]);
  sinkhorn.backward(d_z + 2 * n);
}

// z = mix scale + base: d_mix = d_z scale.
void write_token_d_mix(const HyperWeightsArgs& args, const double* d_z, float* d_mix) {
  for (int64_t r = 0; r < args.mix.cols(); ++r) {
    const float scale = args.scale.f32()[scale_index_of(args.num_streams, r)];
    d_mix[r] = static_cast<float>(d_z[r] * static_cast<double>(scale));
  }
}

void write_token_d_z_and_d_mix(const HyperWeightsArgs& args, int64_t token, const float* d_weights,
                               float* d_z, float* d_mix) {
  double d[kMaxNumbers];
  compute_token_d_z(args, token, d_weights, d);
  std::transform(d, d + args.mix.cols(), d_z,
                 [](double value) { return static_cast<float>(value); });
  write_token_d_mix(args, d, d_mix);
}

// d_scale += d_z mix of one token, part by part of its numbers.
void add_token_d_scale(const HyperWeightsArgs& args, int64_t token, const float* d_z,
                       float* d_scale) {
  const float* mix = args.mix.f32() + token * args.mix.cols();
  const int64_t n = args.num_streams;
  const int64_t ends[] = {n, 2 * n, args.mix.cols()};
  int64_t r = 0;
  for (int64_t part = 0; part < args.scale.cols(); ++part) {
    double sum = 0.0;
    for (; r < ends[part]; ++r) sum += static_cast<double>(d_z[r]) * static_cast<double>(mix[r]);
    d_scale[part] += static_cast<float>(sum);
  }
}

// d_base += d_z and d_scale += d_z mix, tokens ascending.
void add_d_base_and_d_scale(const HyperWeightsArgs& args, const float* d_z, TensorView d_base,
                            TensorView d_scale) {
  const int64_t numbers = args.mix.cols();
  for (int64_t t = 0; t < args.mix.rows(); ++t) {
    const float* row = d_z + t * numbers;
    for (int64_t r = 0; r < numbers && !d_base.empty(); ++r) d_base.f32()[r] += row[r];
    if (!d_scale.empty()) add_token_d_scale(args, t, row, d_scale.f32());
  }
}

}  // namespace

void hyper_mix(CpuBackend& backend, TensorView streams, TensorView fn, float norm_eps,
               TensorView mix, TensorView inv_rms) {
  const HostAccess access(backend.allocator());
  const HyperKernel k = mix_kernel_args_of(streams, fn);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, streams.rows(), fn.shape.num_elements(), [&](int64_t begin, int64_t end) {
      hyper_mix_tokens<V>(k, norm_eps, mix.f32(), inv_rms.f32(), begin, end);
    });
  });
}

void hyper_mix_backward(CpuBackend& backend, TensorView streams, TensorView fn, TensorView mix,
                        TensorView inv_rms, TensorView d_mix, TensorView d_streams,
                        TensorView d_fn) {
  const HostAccess access(backend.allocator());
  const HyperKernel k = mix_kernel_args_of(streams, fn);
  const HyperMixGradients g = {.mix = mix.f32(), .inv_rms = inv_rms.f32(), .d_mix = d_mix.f32()};
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, streams.rows(), fn.shape.num_elements(), [&](int64_t begin, int64_t end) {
      hyper_mix_backward_tokens<V>(k, g, d_streams.f32(), begin, end);
    });
    if (d_fn.empty()) return;
    parallel_for_columns(backend, streams.rows() * fn.rows(), fn.cols(),
                         [&](int64_t begin, int64_t end) {
                           add_hyper_d_fn<V>(k, g, streams.rows(), d_fn.f32(), begin, end);
                         });
  });
}

void hyper_weights(CpuBackend& backend, const HyperWeightsArgs& args, TensorView weights) {
  const HostAccess access(backend.allocator());
  const int64_t work = args.mix.cols() * args.steps;
  parallel_for(backend, args.mix.rows(), work, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      write_token_weights(args, t, weights.f32() + t * args.mix.cols());
    }
  });
}

void hyper_weights_backward(CpuBackend& backend, const HyperWeightsArgs& args, TensorView d_weights,
                            TensorView d_mix, TensorView d_base, TensorView d_scale) {
  const HostAccess access(backend.allocator());
  const int64_t numbers = args.mix.cols();
  const Scratch::Mark mark(backend.scratch());
  float* d_z = backend.scratch().take(DType::kF32, {args.mix.rows(), numbers}).f32();
  parallel_for(backend, args.mix.rows(), 2 * numbers * args.steps, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      write_token_d_z_and_d_mix(args, t, d_weights.f32() + t * numbers, d_z + t * numbers,
                                d_mix.f32() + t * numbers);
    }
  });
  if (!backend.is_counting()) add_d_base_and_d_scale(args, d_z, d_base, d_scale);
}

void hyper_collapse(CpuBackend& backend, TensorView streams, TensorView weights, TensorView y) {
  const HostAccess access(backend.allocator());
  const HyperKernel k = kernel_args_of(streams, weights);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, streams.shape[0], k.row, [&](int64_t begin, int64_t end) {
      hyper_collapse_tokens<V>(k, y.f32(), begin, end);
    });
  });
}

void hyper_collapse_backward(CpuBackend& backend, TensorView streams, TensorView weights,
                             TensorView d_y, TensorView d_streams, TensorView d_weights) {
  const HostAccess access(backend.allocator());
  const HyperKernel k = kernel_args_of(streams, weights);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, streams.shape[0], k.row, [&](int64_t begin, int64_t end) {
      hyper_collapse_backward_tokens<V>(k, d_y.f32(), d_streams.f32(), d_weights.f32(), begin, end);
    });
  });
}

void hyper_expand(CpuBackend& backend, TensorView streams, TensorView out, TensorView weights,
                  TensorView y) {
  const HostAccess access(backend.allocator());
  const HyperKernel k = kernel_args_of(streams, weights);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, streams.shape[0], k.row * k.num_streams, [&](int64_t begin, int64_t end) {
      hyper_expand_tokens<V>(k, out.dtype, out.data, y.dtype, y.data, begin, end);
    });
  });
}

void hyper_expand_backward(CpuBackend& backend, TensorView streams, TensorView out,
                           TensorView weights, TensorView d, TensorView d_out,
                           TensorView d_weights) {
  const HostAccess access(backend.allocator());
  const HyperKernel k = kernel_args_of(streams, weights);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, streams.shape[0], 2 * k.row * k.num_streams,
                 [&](int64_t begin, int64_t end) {
                   hyper_expand_backward_tokens<V>(k, out.dtype, out.data, d.f32(), d_out.f32(),
                                                   d_weights.f32(), begin, end);
                 });
  });
}

}  // namespace strata::ops::cpu
