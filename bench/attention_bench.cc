// SPDX-License-Identifier: Apache-2.0
// How near is attention to the limits of the machine? Forward and backward as shares of the matrix
// limit, counting the pairs that are seen (4 H flops a query-key pair forward, 10 H backward);
// decode as a share of the read bandwidth, counting the bytes of the keys and values. Caches of
// decode rotate through more memory than the processor's caches hold. How: bench/limit_share.h.
//   attention_bench [--only forward|backward|decode] [--path avx512_bf16] [--dtype f32|bf16]
//                   [--threads 2] [--reps 7] [--heads 16] [--kv-heads 8] [--dim 128]
//                   [--window 0]
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "limit_share.h"
#include "ops/attention.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/limits.h"

namespace strata::ops {
namespace {

struct Options {
  std::string only;
  DType dtype = DType::kBF16;
  CpuPath path = choose_cpu_path();
  int threads = 0;
  int reps = 7;
  int64_t heads = 16;
  int64_t kv_heads = 8;
  int64_t dim = 128;
  int64_t window = 0;
};

void fill_normal(const TensorView& view, uint64_t seed) {
  const Counter counter{.seed = seed, .stream = 0};
  for (int64_t i = 0; i < view.shape.num_elements(); ++i) {
    const auto value = static_cast<float>(counter.normal(static_cast<uint64_t>(i)));
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
      : options_(options), backend_(options.path, options.threads), probe_(backend_) {}

  // Prints rate and share of the matrix limit (flops) or of the read limit (bytes) of `work`.
  template <typename Work>
  void row(const std::string& name, double amount, bool bandwidth, Work work) {
    const auto limit = [&] {
      return bandwidth ? probe_.measure_read_bandwidth()
                       : probe_.measure_matrix_flops(options_.dtype);
    };
    const LimitShare got = measure_share(amount, options_.reps, limit, work);
    fmt::print("{:32} {:8.3f} ms {:8.1f} {} {:5.1f} % of the limit{}\n", name,
               1e3 * amount / got.rate, got.rate * 1e-9, bandwidth ? "GB/s   " : "GFLOP/s",
               100 * got.share, got.noisy > 0 ? fmt::format("  ({} noisy)", got.noisy) : "");
    std::fflush(stdout);
  }

  void train(const std::vector<int64_t>& lengths, bool backward);
  void decode(int64_t num_sequences, int64_t context);
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] bool wanted(const std::string& group) const {
    return options_.only.empty() || options_.only == group;
  }
  CpuBackend& backend() { return backend_; }

 private:
  Options options_;
  CpuBackend backend_;
  LimitProbe probe_;
};

void Bench::train(const std::vector<int64_t>& lengths, bool backward) {
  int64_t tokens = 0;
  double pairs = 0;
  for (const int64_t n : lengths) {
    tokens += n;
    const int64_t window = options_.window == 0 ? n : std::min(n, options_.window);
    pairs +=
        static_cast<double>(window) * (static_cast<double>(n) - 0.5 * static_cast<double>(window));
  }
  const Options& o = options_;
  const Shape q_shape{tokens, o.heads, o.dim};
  const Shape kv_shape{tokens, o.kv_heads, o.dim};
  const Tensor q(cpu_allocator(), o.dtype, q_shape), k(cpu_allocator(), o.dtype, kv_shape),
      v(cpu_allocator(), o.dtype, kv_shape);
  const Tensor d_out(cpu_allocator(), o.dtype, q_shape), out(cpu_allocator(), o.dtype, q_shape),
      lse(cpu_allocator(), DType::kF32, {tokens, o.heads});
  const Tensor d_q(cpu_allocator(), o.dtype, q_shape), d_k(cpu_allocator(), o.dtype, kv_shape),
      d_v(cpu_allocator(), o.dtype, kv_shape);
  uint64_t seed = 0;
  for (const Tensor* tensor : {&q, &k, &v, &d_out}) fill_normal(tensor->view(), ++seed);
  std::vector<KvRange> ranges;
  std::vector<AttentionSegment> segments;
  int64_t begin = 0;
  for (const int64_t n : lengths) {
    ranges.push_back({.keys = k.view().reshape({tokens, o.kv_heads * o.dim}).row(begin),
                      .values = v.view().reshape({tokens, o.kv_heads * o.dim}).row(begin),
                      .begin = 0,
                      .end = n});
    segments.push_back({.begin = begin, .end = begin + n, .first_position = 0, .kv = {}});
    begin += n;
  }
  for (size_t s = 0; s < segments.size(); ++s) {
    segments[s].kv = {{&ranges[s], 1}, o.kv_heads * o.dim};
  }
  const AttentionArgs args{.q = q,
                           .segments = segments,
                           .num_kv_heads = o.kv_heads,
                           .scale = 0.088f,
                           .window = o.window};
  const std::string name =
      fmt::format("{} {} x {}", backward ? "backward" : "forward", lengths.size(), lengths[0]);
  const double flops = pairs * static_cast<double>(o.heads * o.dim) * (backward ? 10 : 4);
  attention(backend_, args, out, lse);
  row(name, flops, false, [&] {
    if (backward) {
      attention_backward(backend_, args, out, lse, d_out, d_q, d_k, d_v);
    } else {
      attention(backend_, args, out, lse);
    }
  });
}

void Bench::decode(int64_t num_sequences, int64_t context) {
  constexpr int64_t kPage = 64;
  const Options& o = options_;
  const int64_t page_bytes = kPage * o.kv_heads * o.dim * dtype_bytes(o.dtype);
  const int64_t pages_each = (context + kPage - 1) / kPage;
  const int64_t bytes = 2 * num_sequences * pages_each * page_bytes;
  const int64_t layers = std::max<int64_t>(1, (int64_t{384} << 20) / bytes);
  const Memory memory(cpu_allocator(), layers * bytes);
  // Small values of both signs in either type.
  auto* values = static_cast<uint16_t*>(memory.data());
  for (int64_t i = 0; i < memory.size() / 2; ++i) {
    values[i] = static_cast<uint16_t>(0x3c00 + (i * 7 + i / 64) % 256 + (i % 3 == 0 ? 0x8000 : 0));
  }
  // Of a layer and sequence: first all pages of keys, then those of values.
  std::vector<KvRange> pages;
  for (int64_t i = 0; i < layers * num_sequences * pages_each; ++i) {
    const int64_t page = i % pages_each;
    char* keys =
        static_cast<char*>(memory.data()) + (2 * (i / pages_each) * pages_each + page) * page_bytes;
    pages.push_back({.keys = keys,
                     .values = keys + pages_each * page_bytes,
                     .begin = page * kPage,
                     .end = (page + 1) * kPage});
  }
  const Tensor q(cpu_allocator(), o.dtype, {num_sequences, o.heads, o.dim});
  const Tensor out(cpu_allocator(), o.dtype, {num_sequences, o.heads, o.dim});
  fill_normal(q.view(), 1);
  std::vector<AttentionSegment> segments(static_cast<size_t>(num_sequences));
  int64_t layer = 0;
  const int64_t seen = o.window == 0 ? context : std::min(context, o.window);
  const double read =
      2.0 * static_cast<double>(num_sequences * seen * o.kv_heads * o.dim * dtype_bytes(o.dtype));
  row(fmt::format("decode B={} context {}", num_sequences, context), read, true, [&] {
    for (int64_t s = 0; s < num_sequences; ++s) {
      const KvRange* first = pages.data() + (layer * num_sequences + s) * pages_each;
      segments[static_cast<size_t>(s)] = {
          .begin = s,
          .end = s + 1,
          .first_position = context - 1,
          .kv = {{first, static_cast<size_t>(pages_each)}, o.kv_heads * o.dim}};
    }
    attention(backend_,
              {.q = q,
               .segments = segments,
               .num_kv_heads = o.kv_heads,
               .scale = 0.088f,
               .window = o.window},
              out, {});
    layer = (layer + 1) % layers;
  });
}

void run(const Options& options) {
  Bench bench(options);
  fmt::print("path {}, {} threads, {}, {} heads, {} kv heads, width {}\n",
             cpu_path_name(options.path), bench.backend().pool().num_threads(),
             dtype_name(options.dtype), options.heads, options.kv_heads, options.dim);
  for (const bool backward : {false, true}) {
    if (!bench.wanted(backward ? "backward" : "forward")) continue;
    bench.train({512}, backward);
    bench.train({2048}, backward);
    bench.train({128, 128, 128, 128}, backward);
  }
  if (!bench.wanted("decode")) return;
  for (const int64_t batch : {1, 8}) {
    for (const int64_t context : {144, 2048, 8192}) bench.decode(batch, context);
  }
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
    if (name == "--heads") options.heads = std::stoll(value);
    if (name == "--kv-heads") options.kv_heads = std::stoll(value);
    if (name == "--dim") options.dim = std::stoll(value);
    if (name == "--window") options.window = std::stoll(value);
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
