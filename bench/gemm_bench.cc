// SPDX-License-Identifier: Apache-2.0
// How near are the matrix products to the limits of the machine? Every repetition is followed by a
// probe of the limit that bounds it, on the same threads; a row is the median of the shares. A
// repetition in which other processes used the cores is thrown away; where most were, the row says
// so and its share means little.
// Weights rotate through more memory than the caches hold.
//   gemm_bench [--only forward|decode|dx|lora|dw|pack] [--path avx512_bf16] [--dtype f32|bf16]
//              [--threads 2] [--reps 7]
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "ops/cpu/cpu_backend.h"
#include "ops/gemm.h"
#include "ops/limits.h"
#include "ops/pack.h"

namespace strata::ops {
namespace {

constexpr int64_t kRotated = int64_t{384} << 20;

constexpr double kSeconds = 0.1;  // of a repetition

struct Options {
  std::string only;
  DType dtype = DType::kBF16;
  CpuPath path = choose_cpu_path();
  int threads = 0;
  int reps = 7;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// CPU time used so far: by all processes of the machine (or stolen from it), and by this one.
struct Busy {
  double machine = 0;
  double own = 0;
};

Busy busy_now() {
  Busy busy;
  std::ifstream stat("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0, steal = 0;
  stat >> cpu >> user >> nice >> system >> idle >> wait >> irq >> softirq >> steal;
  busy.machine =
      (user + nice + system + irq + softirq + steal) / static_cast<double>(sysconf(_SC_CLK_TCK));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  busy.own = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  return busy;
}

// Others used more than 3 % of the time and two ticks of the clock.
bool is_noisy(const Busy& before, const Busy& after, double seconds) {
  const double others = (after.machine - before.machine) - (after.own - before.own);
  return others > 0.03 * seconds + 2.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Panels of one shape, laid one after another in memory that is used in turn.
class Weights {
 public:
  Weights(const Memory& memory, DType dtype, int64_t rows, int64_t cols, int64_t width)
      : memory_(memory),
        view_{.data = nullptr, .dtype = dtype, .rows = rows, .cols = cols, .width = width},
        copies_(std::max<int64_t>(1, kRotated / view_.num_bytes())) {}
  PanelView next() {
    view_.data = static_cast<char*>(memory_.data()) + at_ * view_.num_bytes();
    at_ = (at_ + 1) % copies_;
    return view_;
  }

 private:
  const Memory& memory_;
  PanelView view_;
  int64_t copies_;
  int64_t at_ = 0;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        backend_(options.path, options.threads),
        probe_(backend_),
        memory_(backend_.allocator(), kRotated + (int64_t{64} << 20)),
        values_(backend_.allocator(), kRotated) {
    // Small values of both signs in either type.
    auto* weights = static_cast<uint16_t*>(memory_.data());
    auto* values = static_cast<uint16_t*>(values_.data());
    for (int64_t i = 0; i < memory_.size() / 2; ++i) {
      const auto bits =
          static_cast<uint16_t>(0x3c00 + (i * 7 + i / 64) % 256 + (i % 3 == 0 ? 0x8000 : 0));
      weights[i] = bits;
      if (i < values_.size() / 2) values[i] = bits;
    }
  }

  TensorView values(DType dtype, int64_t rows, int64_t cols, int64_t offset = 0) {
    return {static_cast<char*>(values_.data()) + (offset << 20), dtype, {rows, cols}};
  }
  Weights weights(int64_t rows, int64_t cols, int64_t width) {
    return {memory_, options_.dtype, rows, cols, width};
  }
  CpuBackend& backend() { return backend_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] bool wanted(const std::string& group) const {
    return options_.only.empty() || options_.only == group;
  }

  // Prints rate and share of the matrix limit (flops) or of the read limit (bytes) of `work`.
  template <typename Work>
  void row(const std::string& name, double flops, double bytes, Work work) {
    work();
    const auto start = std::chrono::steady_clock::now();
    work();
    const int calls =
        static_cast<int>(std::clamp(kSeconds / (seconds_since(start) + 1e-9), 1.0, 1e5));
    std::vector<double> shares;
    std::vector<double> rates;
    const double amount = bytes > 0 ? bytes : flops;
    double limit = measure(bytes > 0);
    int noisy = 0;
    for (int rep = 0; rep < options_.reps || (noisy == rep && rep < 4 * options_.reps); ++rep) {
      const Busy before = busy_now();
      const auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < calls; ++call) work();
      const double rate = amount * calls / seconds_since(begin);
      const double after = measure(bytes > 0);
      const bool spoilt = is_noisy(before, busy_now(), seconds_since(begin));
      noisy += spoilt ? 1 : 0;
      if (!spoilt || rep + 1 == 4 * options_.reps) {
        rates.push_back(rate);
        shares.push_back(rate / (0.5 * (limit + after)));
      }
      limit = after;
    }
    fmt::print("{:44} {:8.1f} {}  {:5.1f} % of the limit{}\n", name, median(rates) * 1e-9,
               bytes > 0 ? "GB/s   " : "GFLOP/s", 100 * median(shares),
               noisy > 0 ? fmt::format("  ({} noisy)", noisy) : "");
    std::fflush(stdout);
  }

 private:
  double measure(bool bandwidth) {
    return bandwidth ? probe_.measure_read_bandwidth()
                     : probe_.measure_matrix_flops(options_.dtype);
  }

  Options options_;
  CpuBackend backend_;
  LimitProbe probe_;
  Memory memory_;
  Memory values_;
};

struct MatrixShape {
  const char* name;
  int64_t outputs;
  int64_t inputs;
};
constexpr MatrixShape kShapes[] = {{"q", 2048, 1024},
                                   {"o", 1024, 2048},
                                   {"gate", 3072, 1024},
                                   {"down", 1024, 3072},
                                   {"head", 151936, 1024}};

void forward(Bench& bench, const MatrixShape& shape, int64_t tokens, int64_t rank, bool decode) {
  const DType dtype = bench.options().dtype;
  const int64_t width = bench.backend().panel_width();
  const bool head = shape.outputs > 100000;
  Weights weights = bench.weights(shape.outputs, shape.inputs, width);
  Weights low = bench.weights(shape.outputs, std::max<int64_t>(rank, 1), width);
  const TensorView x = bench.values(dtype, tokens, shape.inputs);
  const TensorView h = bench.values(dtype, tokens, std::max<int64_t>(rank, 1), 32);
  const TensorView y = bench.values(head ? DType::kF32 : dtype, tokens, shape.outputs, 64);
  const double macs =
      static_cast<double>(tokens * shape.outputs) * static_cast<double>(shape.inputs + rank);
  const double bytes =
      static_cast<double>(weights.next().num_bytes() + (rank > 0 ? low.next().num_bytes() : 0));
  bench.row(fmt::format("{} {} T={} N={} K={}{}", decode ? "decode" : "forward", shape.name, tokens,
                        shape.outputs, shape.inputs, rank > 0 ? fmt::format(" r={}", rank) : ""),
            2 * macs, decode ? bytes : 0, [&] {
              const LowRankSegment run{.begin = 0, .end = tokens, .x = h, .w = low.next()};
              gemm(bench.backend(),
                   {.x = x, .w = weights.next(), .runs = {&run, rank > 0 ? 1u : 0u}}, y);
            });
}

void input_gradient(Bench& bench, const MatrixShape& shape, int64_t tokens, int64_t rank) {
  const DType dtype = bench.options().dtype;
  Weights weights = bench.weights(shape.outputs, shape.inputs, bench.backend().panel_width());
  Weights low = bench.weights(std::max<int64_t>(rank, 1), shape.inputs, 32);
  const TensorView dy = bench.values(dtype, tokens, shape.outputs);
  const TensorView dh = bench.values(dtype, tokens, std::max<int64_t>(rank, 1), 192);
  const TensorView dx = bench.values(DType::kF32, tokens, shape.inputs, 200);
  const double macs =
      static_cast<double>(tokens * shape.inputs) * static_cast<double>(shape.outputs + rank);
  bench.row(fmt::format("dx {} T={} N={} K={}{}", shape.name, tokens, shape.outputs, shape.inputs,
                        rank > 0 ? fmt::format(" r={}", rank) : ""),
            2 * macs, 0, [&] {
              const LowRankSegment run{.begin = 0, .end = tokens, .x = dh, .w = low.next()};
              gemm_dx(bench.backend(),
                      {.x = dy, .w = weights.next(), .runs = {&run, rank > 0 ? 1u : 0u}}, dx);
            });
}

void weight_gradient(Bench& bench, int64_t tokens, int64_t outputs, int64_t inputs) {
  const DType dtype = bench.options().dtype;
  const TensorView dy = bench.values(dtype, tokens, outputs);
  const TensorView x = bench.values(dtype, tokens, inputs, 32);
  const Tensor dw(cpu_allocator(), DType::kF32, {outputs, inputs});
  const int64_t ends[] = {tokens};
  bench.row(fmt::format("dw T={} N={} K={}", tokens, outputs, inputs),
            2.0 * static_cast<double>(tokens * outputs * inputs), 0,
            [&] { gemm_dw(bench.backend(), dy, x, ends, dw); });
}

void pack_rows(Bench& bench, DType from, const MatrixShape& shape) {
  Weights weights = bench.weights(shape.outputs, shape.inputs, bench.backend().panel_width());
  const TensorView rows = bench.values(from, shape.outputs, shape.inputs);
  const double bytes = static_cast<double>(rows.num_bytes() + weights.next().num_bytes());
  bench.row(fmt::format("pack {} {} from {} (read + written)", shape.name,
                        dtype_name(bench.options().dtype), dtype_name(from)),
            0, bytes, [&] { pack(bench.backend(), rows, 0, weights.next()); });
}

void run(const Options& options) {
  Bench bench(options);
  fmt::print("path {}, {} threads, {}\n", cpu_path_name(options.path),
             bench.backend().pool().num_threads(), dtype_name(options.dtype));
  for (const MatrixShape& shape : kShapes) {
    const bool head = shape.outputs > 100000;
    if (bench.wanted("forward")) {
      for (const int64_t tokens : {32, 64, 512, 2048}) {
        if (!head || tokens < 512) forward(bench, shape, tokens, 0, false);
      }
      if (head) forward(bench, shape, 256, 0, false);
    }
    if (bench.wanted("decode")) {
      for (const int64_t tokens : {1, 2, 4, 8, 16}) forward(bench, shape, tokens, 0, true);
      if (!head) forward(bench, shape, 8, 32, true);
    }
    if (bench.wanted("dx")) {
      for (const int64_t tokens : {16, 64, 512, 2048}) {
        if (!head || tokens < 2048) input_gradient(bench, shape, tokens, 0);
      }
    }
    if (bench.wanted("lora") && !head) {
      forward(bench, shape, 512, 32, false);
      input_gradient(bench, shape, 512, 32);
    }
  }
  for (const int64_t rank : {8, 16, 32, 64}) {
    const int64_t width = rank > 32 ? 64 : rank > 16 ? 32 : 16;
    if (bench.wanted("lora")) {
      Weights a = bench.weights(rank, 1024, width);
      const TensorView x = bench.values(options.dtype, 512, 1024);
      const TensorView h = bench.values(options.dtype, 512, rank, 32);
      bench.row(fmt::format("x A^T T=512 R={} K=1024", rank),
                2.0 * 512 * 1024 * static_cast<double>(rank), 0,
                [&] { gemm(bench.backend(), {.x = x, .w = a.next()}, h); });
      Weights b = bench.weights(2048, rank, bench.backend().panel_width());
      const TensorView dy = bench.values(options.dtype, 512, 2048);
      bench.row(fmt::format("dy B T=512 N=2048 R={}", rank),
                2.0 * 512 * 2048 * static_cast<double>(rank), 0,
                [&] { gemm_dx(bench.backend(), {.x = dy, .w = b.next()}, h); });
    }
    if (bench.wanted("dw")) {
      weight_gradient(bench, 512, rank, 1024);
      weight_gradient(bench, 512, 2048, rank);
    }
  }
  if (bench.wanted("dw")) {
    weight_gradient(bench, 512, 2048, 1024);
    weight_gradient(bench, 2048, 2048, 1024);
    weight_gradient(bench, 2048, 1024, 3072);
  }
  if (bench.wanted("pack")) {
    for (const DType from : {DType::kBF16, DType::kF32, DType::kF16}) {
      pack_rows(bench, from, {"gate", 3072, 1024});
      pack_rows(bench, from, {"32 gates", 98304, 1024});
    }
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
