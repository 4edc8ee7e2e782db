// SPDX-License-Identifier: Apache-2.0
// How near is the gated delta rule to the limits of the machine? Forward and backward as shares of
// the fp32 matrix limit, counting the flops of the chunk form (delta_net_flops); decode as a share
// of the read bandwidth, counting the bytes of the states that a token reads: the state at the
// chunk's start, and keys and u of half a chunk. States of decode rotate through more memory than
// the processor's caches hold. How: bench/limit_share.h.
//   delta_net_bench [--only forward|backward|decode] [--path avx512] [--dtype f32|bf16]
//                   [--threads 2] [--reps 7] [--key-heads 16] [--value-heads 16] [--dim 128]
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "limit_share.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/delta_net.h"
#include "ops/limits.h"

namespace strata::ops {
namespace {

struct Options {
  std::string only;
  DType dtype = DType::kBF16;
  CpuPath path = choose_cpu_path();
  int threads = 0;
  int reps = 7;
  int64_t key_heads = 16;
  int64_t value_heads = 16;
  int64_t dim = 128;
};

void fill(const TensorView& view, uint64_t seed, double mean, double scale) {
  const Counter counter{.seed = seed, .stream = 0};
  for (int64_t i = 0; i < view.shape.num_elements(); ++i) {
    const double normal = counter.normal(static_cast<uint64_t>(i));
    const auto value = static_cast<float>(mean + scale * normal);
    if (view.dtype == DType::kF32) {
      view.f32()[i] = value;
    } else {
      view.bf16()[i] = to_bf16(value);
    }
  }
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        shape_{options.key_heads, options.value_heads, options.dim, options.dim},
        backend_(options.path, options.threads),
        probe_(backend_) {}

  // Prints rate and share of the matrix limit (flops) or of the read limit (bytes) of `work`.
  template <typename Work>
  void row(const std::string& name, double amount, bool bandwidth, Work work) {
    const auto limit = [&] {
      return bandwidth ? probe_.measure_read_bandwidth() : probe_.measure_matrix_flops(DType::kF32);
    };
    const LimitShare got = measure_share(amount, options_.reps, limit, work);
    fmt::print("{:32} {:8.3f} ms {:8.1f} {} {:5.1f} % of the limit{}\n", name,
               1e3 * amount / got.rate, got.rate * 1e-9, bandwidth ? "GB/s   " : "GFLOP/s",
               100 * got.share, got.noisy > 0 ? fmt::format("  ({} noisy)", got.noisy) : "");
    std::fflush(stdout);
  }

  void train(int64_t num_sequences, int64_t length, bool backward);
  void decode(int64_t num_sequences);
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] bool wanted(const std::string& group) const {
    return options_.only.empty() || options_.only == group;
  }
  CpuBackend& backend() { return backend_; }

 private:
  Options options_;
  DeltaNetShape shape_;
  CpuBackend backend_;
  LimitProbe probe_;
};

// Tensors of a batch.
struct Batch {
  Batch(const DeltaNetShape& shape, DType dtype, int64_t tokens)
      : qkv(cpu_allocator(), dtype, {tokens, shape.width()}),
        log_decay(cpu_allocator(), DType::kF32, {tokens, shape.num_value_heads}),
        beta(cpu_allocator(), DType::kF32, {tokens, shape.num_value_heads}),
        out(cpu_allocator(), dtype, {tokens, shape.num_value_heads, shape.value_dim}) {
    fill(qkv, 1, 0, 1);
    fill(log_decay, 2, -0.2, 0.02);
    fill(beta, 3, 0.5, 0.1);
  }
  Tensor qkv, log_decay, beta, out;
};

void Bench::train(int64_t num_sequences, int64_t length, bool backward) {
  const int64_t tokens = num_sequences * length;
  const Batch batch(shape_, options_.dtype, tokens);
  const Tensor d_out(cpu_allocator(), options_.dtype, batch.out.view().shape);
  const Tensor d_qkv(cpu_allocator(), options_.dtype, batch.qkv.view().shape);
  const Tensor d_log_decay(cpu_allocator(), DType::kF32, batch.beta.view().shape);
  const Tensor d_beta(cpu_allocator(), DType::kF32, batch.beta.view().shape);
  fill(d_out, 4, 0, 1);
  std::vector<StateSegment> segments;
  for (int64_t s = 0; s < num_sequences; ++s) {
    segments.push_back({.begin = s * length, .end = (s + 1) * length});
  }
  const DeltaNetArgs args{shape_, batch.qkv, batch.log_decay, batch.beta, segments};
  const double flops =
      backward ? delta_net_backward_flops(shape_, length) : delta_net_flops(shape_, length);
  row(fmt::format("{} {} x {}", backward ? "backward" : "forward", num_sequences, length),
      static_cast<double>(num_sequences) * flops, false, [&] {
        if (backward) {
          delta_net_backward(backend_, args, d_out, d_qkv, d_log_decay, d_beta);
        } else {
          delta_net(backend_, args, batch.out);
        }
      });
}

// Tokens 64 to 127 of every sequence, over and over: each reads a state, and one in 64 writes it.
void Bench::decode(int64_t num_sequences) {
  const int64_t state_bytes = delta_state_bytes(shape_);
  const int64_t layers = std::max<int64_t>(1, (int64_t{384} << 20) / (num_sequences * state_bytes));
  const Memory memory(cpu_allocator(), layers * num_sequences * state_bytes);
  const Batch batch(shape_, options_.dtype, num_sequences);
  std::vector<StateSegment> segments(static_cast<size_t>(num_sequences));
  int64_t layer = 0;
  int64_t position = 0;
  const auto step = [&] {
    for (int64_t s = 0; s < num_sequences; ++s) {
      segments[static_cast<size_t>(s)] = {
          .begin = s,
          .end = s + 1,
          .first_position = position,
          .state = static_cast<char*>(memory.data()) + (layer * num_sequences + s) * state_bytes};
    }
    delta_net(backend_, {shape_, batch.qkv, batch.log_decay, batch.beta, segments}, batch.out);
    if (++layer < layers) return;
    layer = 0;
    position = position == 2 * kDeltaChunk - 1 ? kDeltaChunk : position + 1;
  };
  while (position < kDeltaChunk) step();
  const double square = static_cast<double>(options_.dim * options_.dim);
  const double half = 0.5 * static_cast<double>(kDeltaChunk * options_.dim);
  const double read = 4.0 * static_cast<double>(num_sequences) *
                      (static_cast<double>(options_.value_heads) * (square + half) +
                       static_cast<double>(options_.key_heads) * half);
  row(fmt::format("decode B={}", num_sequences), read, true, step);
}

void run(const Options& options) {
  Bench bench(options);
  fmt::print("path {}, {} threads, {}, {} key heads, {} value heads, width {}\n",
             cpu_path_name(options.path), bench.backend().pool().num_threads(),
             dtype_name(options.dtype), options.key_heads, options.value_heads, options.dim);
  for (const bool backward : {false, true}) {
    if (!bench.wanted(backward ? "backward" : "forward")) continue;
    bench.train(1, 512, backward);
    bench.train(1, 2048, backward);
    bench.train(16, 128, backward);
  }
  if (!bench.wanted("decode")) return;
  for (const int64_t batch : {1, 8}) bench.decode(batch);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--only") options.only = value;
    if (name == "--dtype") options.dtype = value == "f32" ? DType::kF32 : DType::kBF16;
    if (name == "--threads") options.threads = std::stoi(value);
    if (name == "--reps") options.reps = std::stoi(value);
    if (name == "--key-heads") options.key_heads = std::stoll(value);
    if (name == "--value-heads") options.value_heads = std::stoll(value);
    if (name == "--dim") options.dim = std::stoll(value);
    if (name != "--path") continue;
    for (const CpuPath path : {CpuPath::kReference, CpuPath::kAvx2, CpuPath::kAvx512,
                               CpuPath::kAvx512Bf16, CpuPath::kAmx}) {
      if (value == cpu_path_name(path) && cpu_path_supported(path)) options.path = path;
    }
  }
  return options;
}

}  // namespace
}  // namespace strata::ops

int main(int argc, char** argv) {
  strata::ops::run(strata::ops::parse(argc, argv));
  return 0;
}
